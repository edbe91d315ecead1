"""Varied phrasings of retail requests, by the first plain template of each statement."""

import re
from random import Random

from grpo_cl.envs.generation.varied_texts import Background, Phrasings

_RETURN = (
    "return {items}{location} | the refund should go to {method}",
    "return {items}{location} | {you} want the refund on {method}",
    "return {items}{location} | for the refund {you} prefer {method}",
    "return {items}{location} and have the refund sent to {method}",
    "return {items}{location} and get {your} money back on {method}",
    "send {items}{location} back | the money should be refunded to {method}",
    "send back {items}{location}, with the refund going to {method}",
    "give back {items}{location} | the refund goes to {method}",
    "get a refund by returning {items}{location} | it should be paid to {method}",
    "return {items}{location}, with a refund to {method}",
    "return {items}{location} and get a refund to {method}",
    "return {items}{location} because of the quality | the refund should go to {method}",
)
_PRICE = (
    "{you} want to use {method} for the price difference",
    "any price difference should be settled through {method}",
    "if the price differs, {you} want {method} to be used",
    "the price difference goes through {method}",
    "to pay or to get the difference back, {you} use {method}",
    "for payment or refund, {you} prefer {method}",
)
_SWAPS = (
    *(f"{verb} {{swaps}} | {price}" for verb in ("exchange", "swap") for price in _PRICE),
    "exchange {swaps} using {method} for any price difference",
    "trade in {swaps}, with the price difference on {method}",
    "exchange {swaps} and settle the difference with {method}",
)
_CHANGES = (
    *(f"{verb} {{swaps}} | {price}" for verb in ("change", "modify", "switch") for price in _PRICE),
    "change {swaps} using {method} for any price difference",
    "modify {swaps}, with the price difference on {method}",
)

PHRASINGS: Phrasings = {
    "cancel {order} because {why}": (
        "cancel {order} because {why}",
        "cancel {order}, as {why}",
        "cancel {order} since {why}",
        "cancel {order} | the reason is that {why}",
        "cancel {order} | asked for a reason, {you} say that {why}",
        "get {order} cancelled because {why}",
        "have {order} cancelled, because {why}",
        "call off {order} since {why}",
        "stop {order} before it is shipped because {why}",
        "cancel {order} and get a refund for it because {why}",
        "undo {order}, because {why}",
        "cancel {order}, which is still pending, because {why}",
        "cancel {your} pending order, {order}, because {why}",
    ),
    "cancel {order} because {you} no longer need it": (
        "cancel {order} because {you} no longer need it",
        "cancel {order} and get a refund, as {you} no longer need it",
        "have {order} cancelled | {you} just do not need it any more",
        "cancel {order} | the reason is that {you} no longer need it",
        "call off {order} since {you} no longer need it",
    ),
    "cancel {order} because {why}, which is the only reason {you} will give": (
        "cancel {order} because {why}, and {you} will not give any other reason",
        "cancel {order} | {you} insist that the only reason is that {why}",
        "have {order} cancelled because {why} | no other reason applies",
        "get {order} cancelled, and the one reason {you} give is that {why}",
    ),
    "cancel only {item}{location} and keep everything else in that order": (
        "cancel only {item}{location} and keep the rest of that order",
        "cancel {item}{location} | everything else in that order should be kept",
        "remove {item}{location} | {you} do not want to cancel the whole order",
        "take just {item}{location} out and keep all other items of that order",
    ),
    "cancel order {order}, which a friend placed and no longer needs": (
        "cancel order {order}, which a friend placed and no longer needs",
        "cancel order {order} for a friend | the friend ordered it and does not need it any more",
        "have order {order} cancelled, which {your} sister placed by mistake",
        "cancel order {order} | it belongs to a neighbour who no longer needs it",
    ),
    "have {order} shipped to a different address, namely {address}": (
        "have {order} shipped to {address}",
        "have {order} sent to a different address | it should go to {address}",
        "change the shipping address of {order} to {address}",
        "change the address of {order} to {address}",
        "change where {order} is sent | the new address is {address}",
        "modify the address of {order} | {you} want it to be {address}",
        "update the delivery address of {order} to {address}, as {you} moved",
        "get {order} delivered somewhere else, namely to {address}",
        "receive {order} at another address | please use {address}",
        "correct the address of {order}: it should be {address}",
    ),
    "change the default address in {your} profile to {address}": (
        "change the default address in {your} profile to {address}",
        "change {your} default address to {address}",
        "update {your} user address | it should be {address}",
        "change {your} default address because {you} moved | the new one is {address}",
        "make {address} the default address of {your} account",
        "have {your} profile updated so that the default address is {address}",
        "modify the default address of {your} user profile to {address}",
        "set {your} default address to {address}",
    ),
    "pay for {order} with {method} instead": (
        "pay for {order} with {method} instead",
        "change the payment method of {order} to {method}",
        "change how {order} is paid | {you} want to use {method}",
        "switch the payment for {order} to {method}",
        "use {method} to pay for {order} instead of the current payment method",
        "have {order} charged to {method} instead | the earlier payment should be refunded",
        "modify the payment of {order} so that {method} is used",
        "move the payment for {order} over to {method}",
    ),
    "exchange {swaps}, with any price difference settled through {method}": _SWAPS,
    "change {swaps}, with any price difference settled through {method}": _CHANGES,
    "return {items}{location}, with the refund going to {method}": _RETURN,
    "return {item}{location}, with the refund going to {method}": tuple(
        text.replace("{items}", "{item}") for text in _RETURN
    ),
    "return {item}{location}, with the refund going to {method} and nowhere else": (
        "return {item}{location} | the refund must go to {method} and nowhere else",
        "return {item}{location}, but only if the refund goes to {method}",
        "send back {item}{location} | {you} only accept a refund to {method}",
        "return {item}{location} and be refunded on {method}, not on any other payment method",
    ),
    "exchange {item}{location} for {choice}, using {method} for the price difference": tuple(
        f"{verb} {{item}}{{location}} for {{choice}} | {price}"
        for verb in ("exchange", "swap")
        for price in _PRICE
    ),
    "swap {item}{location} for an item of type {product}, using {method} for the price "
    "difference": (
        "exchange {item}{location} for an item of type {product} | {you} want to use {method} for "
        "the price difference",
        "swap {item}{location} for an item of type {product} | any difference goes to {method}",
        "get an item of type {product} in place of {item}{location}, with {method} for the price "
        "difference",
        "change {item}{location} to a different product, of type {product} | {you} would pay with "
        "{method}",
    ),
    "swap {item}{location} for the one with {choice} and no other, using {method} for the price "
    "difference": (
        "exchange {item}{location} for the one with {choice} and no other | {you} want to use "
        "{method} for the price difference",
        "swap {item}{location} for exactly the one with {choice} | the difference goes to {method}",
        "get the one with {choice} in place of {item}{location}, with {method} for the price "
        "difference | no other version will do",
        "change {item}{location} to the one with {choice} | {you} would pay with {method} and do "
        "not want any other version",
    ),
    "if not both can be done, {you} want only the exchange": (
        "if not both can be done, {you} want only the exchange",
        "if only one of the two is possible, {you} prefer the exchange",
        "if the agent can do just one of these, {you} want the exchange and not the return",
    ),
    "if not both can be done, {you} want only the return": (
        "if not both can be done, {you} want only the return",
        "if only one of the two is possible, {you} prefer the return",
        "if the agent can do just one of these, {you} want the return and not the exchange",
    ),
    "if a person has to do that, being passed on is fine": (
        "if a person has to do that, being passed on is fine",
        "if only a human can do that, {you} are okay with being transferred",
        "{you} do not mind being transferred to a human for that",
    ),
}

BACKGROUND = Background(
    openings=(
        "{You} recently moved and {are} still sorting things out",
        "{You} just received a package and looked through all {your} orders",
        "{You} ordered a few things lately and {have} second thoughts",
        "{You} {are} not quite happy with what {you} bought",
        "{You} bought something a while ago and {have} been too busy to call",
        "{You} looked at {your} account this morning",
        "{You} {are} at home with a pile of boxes",
        "{You} {are} saving money this month",
        "{You} {are} angry about how long this takes",
        "{You} {have} shopped here for years",
        "{You} {are} going through {your} purchases with {your} partner",
        "{You} received {your} order but {do} not like everything about it",
        "{You} {are} cleaning up {your} shopping list",
        "{Your} friend told {me} to contact the shop",
        "{You} had a long day",
        "{You} {have} a question about what {you} bought",
        "{You} compared the items with those of another shop",
        "{You} {are} in the middle of preparing a birthday party",
    ),
    asides=(
        "{Your} cousin recommended this shop",
        "{You} think{s} that the parcel service always rings at the wrong door",
        "{You} {are} planning a party for next month, which has nothing to do with this",
        "{You} saw an advertisement for the shop on a bus",
        "{Your} dog is barking in the background",
        "{You} once worked in a shop",
        "{Your} internet connection is slow today",
        "{You} just got back from a trip",
        "{You} love{s} the new website",
        "{You} {are} thinking of buying a guitar some day",
        "{You} {have} another call in ten minutes",
        "{You} {do} not trust chat robots",
    ),
)

UNKNOWN = {
    "email": (
        "{You} {do} not remember {your} email address",
        "{You} {do} not have {your} email address at hand",
        "{You} {do} not remember the email {you} used",
    ),
    "order": (
        "{You} {do} not remember the number of an order that {you} describe",
        "{You} {do} not know {your} order numbers by heart",
        "{You} {do} not have all order ids, but the agent can look them up",
    ),
}
"""What the customer may not know, by a word of the plain sentence."""

_OPTION = re.compile(r"(?<=[a-z]): ")
_NAME = r"(?!PayPal)[A-Z][\w'-]*(?: [A-Z][\w'-]*)*"
_PRODUCT = re.compile(rf"(\bthe|{{your}}) ({_NAME})(?=[ ,.;)]|$)")
_OWN_PRODUCT = re.compile(rf"(?<!with )(?<!and )\bthe( {_NAME})(?![\w'-]| [A-Z]| {{you}} ordered)")


def everyday(text: str, rng: Random) -> str:
    """A clause with options and product names as people write them."""
    if rng.random() < 0.6:
        text = _OPTION.sub(" ", text)
    if rng.random() < 0.3:
        text = _OWN_PRODUCT.sub(r"{your}\1", text)
    if rng.random() < 0.6:
        text = _PRODUCT.sub(lambda match: f"{match[1]} {match[2].lower()}", text)
    if rng.random() < 0.4:
        text = text.replace("the payment method originally used for", "the way {you} paid for")
    return text
