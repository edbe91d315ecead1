"""Synthetic customers and dashers."""

from random import Random

from grpo_cl.envs.doordash.database import (
    ALLERGENS,
    ZONES,
    Address,
    Customer,
    Dasher,
    PaymentMethod,
)

_FIRST_NAMES = (
    "Ada", "Amir", "Anya", "Bruno", "Carla", "Cedric", "Chloe", "Dante", "Delia", "Elias",
    "Esme", "Farid", "Fiona", "Gideon", "Greta", "Hana", "Hugo", "Imani", "Ines", "Jonas",
    "Kaya", "Kenji", "Lara", "Leon", "Lucia", "Malik", "Mara", "Mateo", "Nadia", "Nico",
    "Odette", "Omar", "Paige", "Priya", "Quentin", "Rafael", "Ravi", "Rosa", "Samir", "Selma",
    "Tamar", "Theo", "Uma", "Vera", "Viktor", "Wanda", "Wesley", "Yara", "Yusuf", "Zoe",
)  # fmt: skip
_LAST_NAMES = (
    "Abbott", "Alvarez", "Banerjee", "Beck", "Brandt", "Castillo", "Chandra", "Cole", "Dubois",
    "Eriksen", "Farrow", "Fischer", "Gallo", "Grant", "Haddad", "Hayes", "Ibarra", "Jensen",
    "Kaplan", "Keller", "Lam", "Lindgren", "Marsh", "Mendez", "Moreau", "Nakamura", "Novak",
    "Okafor", "Ortega", "Park", "Quinn", "Ramos", "Reyes", "Santos", "Sharma", "Silva", "Sosa",
    "Tanaka", "Torres", "Vance", "Vega", "Voss", "Walsh", "Weber", "Yilmaz", "Zhou",
)  # fmt: skip
STREETS = (
    "Acorn Street", "Beacon Lane", "Canal Road", "Dune Court", "Eastern Avenue", "Foundry Street",
    "Garden Row", "Hillcrest Drive", "Ironworks Way", "Jasmine Court", "Kiln Lane", "Ledger Street",
    "Market Row", "Nettle Lane", "Oriole Drive", "Pier Road", "Quince Street", "Rowan Avenue",
    "Station Road", "Tannery Lane", "Upland Drive", "Violet Court", "Weaver Street", "Yarrow Lane",
)  # fmt: skip
LABELS = ("home", "work", "studio", "parents", "gym")
_BRANDS = ("Visa", "Mastercard", "Amex")


def make_address(rng: Random, label: str, zone: str) -> Address:
    """A random address in a zone."""
    street = f"{rng.randrange(3, 990)} {rng.choice(STREETS)}"
    return Address(label=label, street=street, zip=ZONES[zone], zone=zone)


def make_customers(rng: Random, count: int) -> dict[str, Customer]:
    """Customers without orders; no two share a name, an email or a phone number."""
    names = [(first, last) for first in _FIRST_NAMES for last in _LAST_NAMES]
    phones = rng.sample(range(2_000_000, 9_999_999), count)
    customers = (
        _customer(rng, name, phone)
        for name, phone in zip(rng.sample(names, count), phones, strict=True)
    )
    return {customer.customer_id: customer for customer in customers}


def _customer(rng: Random, name: tuple[str, str], phone: int) -> Customer:
    first, last = name
    number = rng.randrange(1000, 10_000)
    labels = ["home", *rng.sample(LABELS[1:], rng.randint(1, 3))]
    zones = [rng.choice(list(ZONES))]
    zones += rng.choices(list(ZONES), k=len(labels) - 1)
    addresses = [make_address(rng, *pair) for pair in zip(labels, zones, strict=True)]
    methods = _payment_methods(rng)
    return Customer(
        customer_id=f"{first}_{last}_{number}".lower(),
        name=f"{first} {last}",
        email=f"{first}.{last}{number % 100:02}@example.com".lower(),
        phone=f"555-{phone // 10_000:03}-{phone % 10_000:04}",
        addresses={address.label: address for address in addresses},
        payment_methods={method.payment_id: method for method in methods},
        pass_until=_pass_end(rng),
        allergies=sorted(rng.sample(ALLERGENS, rng.choice((0, 0, 0, 1, 1, 2)))),
        credits=rng.choice((0.0, 0.0, 5.0, 7.5, 12.25)),
    )


def _pass_end(rng: Random) -> str | None:
    kind = rng.random()
    if kind < 0.35:
        return f"2025-{rng.randrange(4, 12):02}-{rng.randrange(1, 29):02}"
    return f"2025-0{rng.choice((1, 2))}-{rng.randrange(1, 29):02}" if kind < 0.5 else None


def _payment_methods(rng: Random) -> list[PaymentMethod]:
    brand, last_four = rng.choice(_BRANDS), f"{rng.randrange(1000, 10_000)}"
    numbers = [f"pay_{number}" for number in rng.sample(range(100_000, 1_000_000), 3)]
    methods = [
        PaymentMethod(payment_id=numbers[0], source="card", brand=brand, last_four=last_four)
    ]
    if rng.random() < 0.5:
        methods.append(PaymentMethod(payment_id=numbers[1], source="paypal"))
    if rng.random() < 0.5:
        balance = rng.randrange(1000, 14_000) / 100
        methods.append(PaymentMethod(payment_id=numbers[2], source="gift_card", balance=balance))
    return methods


def make_dasher(rng: Random, number: int) -> Dasher:
    """A dasher without an order."""
    return Dasher(
        dasher_id=f"dasher_{number:03}",
        name=f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}",
        vehicle=rng.choice(("bicycle", "scooter", "car")),
        rating=rng.randrange(41, 51) / 10,
    )
