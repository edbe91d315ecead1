"""Names, cities, clinics, specialties, plans and medicines of the healthcare database."""

from typing import NamedTuple

FIRST_NAMES = (
    "Ada", "Alma", "Amir", "Anton", "Asha", "Beatriz", "Benno", "Carla", "Cedric", "Dalia",
    "Daniel", "Dora", "Edwin", "Elif", "Emil", "Esther", "Felix", "Freya", "Gideon", "Greta",
    "Hana", "Hugo", "Ibrahim", "Ines", "Ivan", "Jamila", "Jonas", "Judith", "Kenji", "Klara",
    "Lars", "Leila", "Lucia", "Magnus", "Maren", "Mateo", "Mina", "Nadia", "Nils", "Noemi",
    "Olga", "Omar", "Paula", "Pedro", "Quentin", "Rafael", "Renata", "Rosa", "Samir", "Selma",
    "Simon", "Tamara", "Tariq", "Thea", "Ursula", "Vera", "Viktor", "Wanda", "Yara", "Zeno",
)  # fmt: skip
LAST_NAMES = (
    "Abbott", "Adeyemi", "Almeida", "Anders", "Barlow", "Becker", "Bianchi", "Boyle", "Castillo",
    "Chandra", "Cho", "Crane", "Delgado", "Dunn", "Ekberg", "Farouk", "Fischer", "Fontaine",
    "Garland", "Grant", "Haddad", "Hale", "Holm", "Ibarra", "Ishida", "Jansen", "Kapoor", "Keller",
    "Kovacs", "Lind", "Lowell", "Malik", "Marsh", "Mbeki", "Mercer", "Moreau", "Nakata", "Novak",
    "Okafor", "Ortega", "Park", "Petrov", "Quist", "Rahman", "Reyes", "Rossi", "Sato", "Silva",
    "Stone", "Tanaka", "Torres", "Umar", "Vance", "Vega", "Wagner", "Weiss", "Yilmaz", "Zhou",
)  # fmt: skip
STREETS = (
    "Aspen Court", "Bridge Street", "Canal Road", "Dune Avenue", "Ember Lane", "Foundry Street",
    "Garden Row", "Hill Road", "Island Avenue", "Jasmine Lane", "Knoll Drive", "Lantern Street",
    "Mill Road", "Needle Court", "Oak Row", "Pine Drive", "Quay Street", "Rose Lane",
)  # fmt: skip
CITIES = (
    ("Ashford", "97211"),
    ("Brookdale", "97322"),
    ("Clearwater", "97433"),
    ("Elmira", "97544"),
)
CLINICS = (
    ("Ashford Family Clinic", "Ashford", 35),
    ("Lakeside Medical Center", "Ashford", 60),
    ("Brookdale Health House", "Brookdale", 45),
    ("Clearwater Clinic", "Clearwater", 45),
    ("Riverbend Specialists", "Clearwater", 75),
    ("Elmira Care Center", "Elmira", 55),
)
"""Name, city and late fee."""
LANGUAGES = ("Spanish", "Arabic", "Polish", "Vietnamese", "French", "Hindi")


class Specialty(NamedTuple):
    """A medical specialty, its number of providers and the ages it treats."""

    name: str
    providers: int
    min_age: int
    max_age: int


FAMILY = "family medicine"
PEDIATRICS = "pediatrics"
SPECIALTIES = (
    Specialty(FAMILY, 10, 0, 120),
    Specialty(PEDIATRICS, 5, 0, 17),
    Specialty("cardiology", 4, 18, 120),
    Specialty("dermatology", 5, 0, 120),
    Specialty("endocrinology", 4, 18, 120),
    Specialty("neurology", 4, 18, 120),
    Specialty("orthopedics", 4, 0, 120),
    Specialty("psychiatry", 4, 18, 120),
)
SPECIALISTS = tuple(s.name for s in SPECIALTIES if s.name not in {FAMILY, PEDIATRICS})

PLANS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("Cedar HMO", SPECIALISTS, ()),
    ("Harbor PPO", (), ()),
    ("Summit EPO", ("cardiology", "neurology"), ("psychiatry",)),
    ("Meadow Basic HMO", SPECIALISTS, ("dermatology",)),
    ("Beacon PPO Plus", (), ()),
    ("Willow Select", ("dermatology", "endocrinology", "orthopedics"), ()),
)
"""Name, specialties that require a referral, specialties that are not covered."""


class Medicine(NamedTuple):
    """A medicine and the specialty that prescribes it."""

    name: str
    specialty: str
    is_controlled: bool = False


MEDICINES = (
    Medicine("lisinopril 10 mg", FAMILY),
    Medicine("metformin 500 mg", "endocrinology"),
    Medicine("levothyroxine 50 mcg", "endocrinology"),
    Medicine("atorvastatin 20 mg", "cardiology"),
    Medicine("amlodipine 5 mg", "cardiology"),
    Medicine("omeprazole 20 mg", FAMILY),
    Medicine("albuterol inhaler", FAMILY),
    Medicine("cetirizine 10 mg", FAMILY),
    Medicine("tretinoin cream", "dermatology"),
    Medicine("meloxicam 15 mg", "orthopedics"),
    Medicine("topiramate 25 mg", "neurology"),
    Medicine("sertraline 50 mg", "psychiatry"),
    Medicine("zolpidem 5 mg", FAMILY, is_controlled=True),
    Medicine("alprazolam 0.5 mg", "psychiatry", is_controlled=True),
    Medicine("methylphenidate 10 mg", "psychiatry", is_controlled=True),
    Medicine("tramadol 50 mg", "orthopedics", is_controlled=True),
)
CHILD_MEDICINES = ("albuterol inhaler", "cetirizine 10 mg", "tretinoin cream")

TIMES: tuple[str, ...] = (
    "08:30", "09:00", "09:30", "10:00", "10:30", "11:00", "11:30",
    "13:00", "13:30", "14:00", "14:30", "15:00", "15:30", "16:00", "16:30",
)  # fmt: skip
"""Start times of visits; each visit takes half an hour."""
