"""Varied phrasings of doordash requests, by the first plain template of each statement."""

from grpo_cl.envs.generation.varied_texts import Background, Phrasings

_CANCEL = (
    "cancel {order}",
    "call off {order}",
    "have {order} cancelled",
    "stop {order}",
    "get rid of {order}",
    "cancel {order}, which {you} do not want any more",
)

PHRASINGS: Phrasings = {
    "cancel {order}": _CANCEL,
    "cancel {order} and accept the fee for that": (
        *(f"{text} and accept the fee for that" for text in _CANCEL[:3]),
        *(f"{text} | {{you}} accept the fee for that" for text in _CANCEL),
        *(f"{text} | {{you}} know that there is a fee and agree to it" for text in _CANCEL[:3]),
    ),
    "cancel {order}, but only if that costs nothing": (
        *(f"{text}, but only if that costs nothing" for text in _CANCEL[:3]),
        *(f"{text} | {{you}} want that only if it is free of charge" for text in _CANCEL),
        *(f"{text} | if there is a fee, {{you}} do not want it" for text in _CANCEL[:3]),
    ),
    "cancel order number {order}, which a friend placed": (
        "cancel order number {order}, which a friend placed",
        "have order number {order} of {your} brother cancelled",
        "call off order number {order} for a neighbour",
        "cancel order number {order} | it was placed by a friend, not by {me}",
    ),
    "add {item} to {order}": (
        "add {item} to {order}",
        "put {item} into {order} as well",
        "have {item} added to {order}",
        "extend {order} by {item}",
        "get {item} along with {order}",
    ),
    "remove the {item} from {order}": (
        "remove the {item} from {order}",
        "take the {item} out of {order}",
        "have {order} without the {item}",
        "drop the {item} from {order}",
        "get the {item} taken off {order}",
    ),
    "set the tip of {order} to {tip} dollars": (
        "set the tip of {order} to {tip} dollars",
        "change the tip of {order} to ${tip}",
        "tip {tip} dollars on {order} instead of the current tip",
        "have a tip of {tip} dollars on {order}",
        "change how much {you} tip on {order} | it should be {tip} dollars",
    ),
    "lower the tip of {order} to {tip} dollars": (
        "lower the tip of {order} to {tip} dollars",
        "reduce the tip of {order} to ${tip}",
        "tip less on {order} | {tip} dollars should be enough",
        "bring the tip of {order} down to {tip} dollars",
    ),
    "change {order} so that {wish}": (
        "change {order} so that {wish}",
        "modify {order} so that {wish}",
        "have {order} changed: {you} want that {wish}",
        "adjust {order} so that {wish}",
        "make a change to {order} | {you} want that {wish}",
    ),
    "have {order} brought somewhere else, namely to {address}": (
        "have {order} brought somewhere else, namely to {address}",
        "change the address of {order} to {address}",
        "have {order} delivered to {address} instead",
        "change where {order} is delivered | it should go to {address}",
        "redirect {order} to {address}",
        "get {order} sent to {address}",
    ),
    "add {address}": (
        "add {address}",
        "extend {your} address book by {address}",
        "save {address}",
        "have one more delivery address | it is {address}",
        "store {address}",
    ),
    "get a refund for {order}, where {story}, paid {target}": (
        "get a refund for {order}, where {story}, paid {target}",
        "get money back for {order} because {story}, and have it paid {target}",
        "get a refund for {order} because {story} | it should be paid {target}",
        "complain about {order}, where {story}, and get a refund | the money should go back "
        "{target}",
        "be refunded for {order} | {story} | {you} want the money paid {target}",
        "have money returned for {order}, as {story}, paid {target}",
    ),
    "order {items} from {place}, paid with {method} and with {tip}, to {address}": (
        "order {items} from {place}, paid with {method} and with {tip}, to {address}",
        "place an order for {items} from {place}, with {tip} and paid by {method}, to {address}",
        "get {items} from {place}, with {tip}, charged to {method}, delivered to {address}",
        "order {items} from {place} | it should be delivered to {address} | {you} pay with "
        "{method} and want {tip}",
        "have {items} delivered from {place} to {address} | {you} pay with {method}, with {tip}",
        "order from {place}: {items} | the delivery goes to {address} | payment is with {method}, "
        "with {tip}",
    ),
    "if a person has to see to that, being passed on is fine": (
        "if a person has to see to that, being passed on is fine",
        "if only a human can do that, {you} are okay with being transferred",
        "{you} do not mind being transferred to a human for that",
    ),
    "if a person has to decide on that, being passed on is fine": (
        "if a person has to decide on that, being passed on is fine",
        "if a human has to decide, {you} are okay with being transferred",
        "{you} do not mind being transferred if a human has to decide on it",
    ),
}

UNKNOWN = {
    "email": (
        "{You} {do} not remember the email of {your} account",
        "{You} {do} not know which email {you} used",
        "{You} {do} not have {your} email address at hand",
    ),
    "order": (
        "{You} {do} not remember the number of an order that {you} name by its restaurant",
        "{You} {do} not know all order numbers",
        "{You} {do} not have every order id at hand",
    ),
}
"""What the customer may not know, by a word of the plain sentence."""

BACKGROUND = Background(
    openings=(
        "{You} {are} hungry and a bit annoyed",
        "{You} {are} at home and looking at the app",
        "{You} order{s} here about once a week",
        "{You} {have} guests and not much time",
        "{You} {are} still at work",
        "{You} just looked at {your} order history",
        "{You} had a long day and {do} not feel like cooking",
        "{You} {are} sitting on the sofa with {your} family",
        "{You} tried to do this in the app, but it did not work",
        "{You} {are} on the way home",
        "{You} planned dinner with friends",
    ),
    asides=(
        "Guests are coming tonight",
        "The doorbell is broken",
        "{Your} kitchen is being painted this week",
        "{You} usually cook{s} on Fridays",
        "The elevator in the building is slow",
        "A friend told {me} about the service",
        "{Your} cat is sleeping on the menu",
        "It is raining outside",
        "{You} {are} learning to bake bread",
        "{You} {do} not like cold food",
    ),
)
