import json
import re
from itertools import pairwise
from typing import Any

from airline_tasks import (
    customer,
    free_bags,
    new_environment,
    read_tool,
    replay,
    statuses,
    tasks,
    user_text,
    write_calls,
)


def test_gold_cancellations_are_allowed_by_the_policy():
    for task in tasks():
        environment = new_environment(task)
        for call in replay(environment, task):
            if call.name != "cancel_reservation":
                continue
            key = str(call.arguments["reservation_id"])
            reservation = read_tool(environment, "get_reservation_details", reservation_id=key)
            found = statuses(environment, reservation)
            assert found.isdisjoint({"landed", "flying"})
            is_ill_or_stormy = re.search(
                "ill to fly|doctor|broke a leg|storms|hurricane", user_text(task)
            )
            assert (
                reservation["created_at"] > "2024-05-14T15:00:00"
                or reservation["cabin"] == "business"
                or "cancelled" in found
                or (reservation["insurance"] == "yes" and is_ill_or_stormy)
            ), task.id


def test_flight_changes_exclude_basic_economy_and_keep_origin_and_destination():
    for task in tasks():
        for call in write_calls(task):
            if call.name != "update_reservation_flights":
                continue
            environment = new_environment(task)
            key = str(call.arguments["reservation_id"])
            before = read_tool(environment, "get_reservation_details", reservation_id=key)
            assert statuses(environment, before) == {"available"}
            after = json.loads(environment.call(call).content)
            old, new = (
                [(leg["flight_number"], leg["date"]) for leg in state["flights"]]
                for state in (before, after)
            )
            if old != new:
                assert before["cabin"] == after["cabin"] != "basic_economy"
            is_return = before["flight_type"] == "round_trip"
            assert [date for _, date in new] == sorted(date for _, date in new)
            assert all(
                one["destination"] == two["origin"] for one, two in pairwise(after["flights"])
            )
            assert after["flights"][0]["origin"] == before["origin"]
            goal = before["origin"] if is_return else before["destination"]
            assert after["flights"][-1]["destination"] == goal


def test_bags_are_only_added_and_are_paid_beyond_the_allowance():
    for task in tasks():
        environment = new_environment(task)
        user = read_tool(environment, "get_user_details", user_id=customer(task))
        for call in replay(environment, task):
            if call.name != "update_reservation_baggages":
                continue
            key = str(call.arguments["reservation_id"])
            reservation = read_tool(environment, "get_reservation_details", reservation_id=key)
            total: Any = call.arguments["total_baggages"]
            assert total > reservation["total_baggages"]
            paid = max(0, total - free_bags(user, reservation))
            assert call.arguments["nonfree_baggages"] == paid


def test_bookings_follow_the_payment_and_baggage_rules():
    for task in tasks():
        user = read_tool(new_environment(task), "get_user_details", user_id=customer(task))
        for call in write_calls(task):
            if call.name != "book_reservation":
                continue
            payments: Any = call.arguments["payment_methods"]
            sources = [user["payment_methods"][entry["payment_id"]]["source"] for entry in payments]
            assert sources.count("certificate") <= 1
            assert sources.count("credit_card") <= 1
            assert sources.count("gift_card") <= 3
            assert all(type(entry["amount"]) is int and entry["amount"] > 0 for entry in payments)
            bags: Any = call.arguments["total_baggages"]
            paid = max(0, bags - free_bags(user, call.arguments))
            assert call.arguments["nonfree_baggages"] == paid
            passengers: Any = call.arguments["passengers"]
            assert 1 <= len(passengers) <= 5
            for person in passengers:
                assert f"{person['first_name']} {person['last_name']}" in user_text(task)


def test_certificates_are_sent_to_eligible_customers_only():
    issued = 0
    for task in tasks():
        environment = new_environment(task)
        user = read_tool(environment, "get_user_details", user_id=customer(task))
        owned = [
            read_tool(environment, "get_reservation_details", reservation_id=key)
            for key in user["reservations"]
        ]
        for call in write_calls(task):
            if call.name != "send_certificate":
                continue
            issued += 1
            amounts = {
                rate * len(reservation["passengers"])
                for reservation in owned
                for status, rate in (("cancelled", 100), ("delayed", 50))
                if status in statuses(environment, reservation)
                and (
                    user["membership"] != "regular"
                    or reservation["insurance"] == "yes"
                    or reservation["cabin"] == "business"
                )
            }
            assert call.arguments["amount"] in amounts
    assert issued


def test_the_lowest_price_identifies_one_flight_of_the_search_result():
    checked = 0
    for task in tasks(count=400, difficulty=0.3, seed=4):
        purpose = task.description.purpose if task.description else ""
        if purpose != "flights" or "lowest price" not in user_text(task):
            continue
        read, write = task.gold_actions[-2:]
        environment = new_environment(task)
        key = str(write.arguments["reservation_id"])
        seats = len(
            read_tool(environment, "get_reservation_details", reservation_id=key)["passengers"]
        )
        cabin = write.arguments["cabin"]
        found = json.loads(environment.call(read.call).content)
        options = [option if isinstance(option, list) else [option] for option in found]
        fitting = [
            option
            for option in options
            if all(leg["available_seats"][cabin] >= seats for leg in option)
        ]
        prices = sorted(sum(leg["prices"][cabin] for leg in option) for option in fitting)
        best = min(fitting, key=lambda option: sum(leg["prices"][cabin] for leg in option))
        assert prices.count(prices[0]) == 1
        flights: Any = write.arguments["flights"]
        assert {leg["flight_number"] for leg in best} <= {leg["flight_number"] for leg in flights}
        checked += 1
    assert checked
