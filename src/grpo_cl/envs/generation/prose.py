"""Sentences of varied task texts that fit every domain; placeholders are those of ``persons``.

A sentence with ``{You}`` at its beginning agrees with it through ``{s}``, ``{es}``, ``{are}``,
``{have}``, ``{do}`` and ``{was}``; ``{you}`` is followed by the plural form of a verb.
"""

FIRST_FRAMES = (
    "{You} want{s} to {clause}",
    "{You} want{s} to {clause}",
    "{You} would like to {clause}",
    "{You} would like to {clause}",
    "{You} need{s} to {clause}",
    "{You} wish{es} to {clause}",
    "{You} {are} contacting customer service because {you} want to {clause}",
    "{You} {are} contacting support to {clause}",
    "{You} {are} writing because {you} would like to {clause}",
    "{You} {are} calling because {you} need to {clause}",
    "{You} {are} looking to {clause}",
    "{You} need{s} help because {you} want to {clause}",
    "{You} {are} hoping to {clause}",
    "{You} {have} decided to {clause}",
    "{You} {have} been meaning to {clause}",
    "{You} realize{s} that {you} need to {clause}",
    "{You} just realized that {you} want to {clause}",
    "{You} think{s} it over and want{s} to {clause}",
    "{You} got in touch because {you} want to {clause}",
    "{You} ask{s} for help because {you} want to {clause}",
    "{You} first want{s} to {clause}",
    "{You} recently changed {your} mind and want{s} to {clause}",
    "{You} {are} sure that {you} want to {clause}",
    "{Your} goal is to {clause}",
    "{Your} request is to {clause}",
    "{Your} wish is to {clause}",
    "{Your} main reason to call is that {you} want to {clause}",
    "What {you} want is to {clause}",
    "What {you} need help with is this: {you} want to {clause}",
    "This is what it is about: {you} want to {clause}",
    "Having thought about it, {you} want to {clause}",
    "Having talked to {your} family, {you} want to {clause}",
    "Before anything else, {you} want to {clause}",
    "If it is possible, {you} want to {clause}",
    "As soon as possible, {you} want to {clause}",
    "For personal reasons, {you} want to {clause}",
    "Because {your} situation has changed, {you} want to {clause}",
    "It is important to {me} to {clause}",
)

NEXT_FRAMES = (
    "{You} also want{s} to {clause}",
    "{You} also want{s} to {clause}",
    "{You} also want{s} to {clause}",
    "{You} also need{s} to {clause}",
    "{You} would also like to {clause}",
    "{You} then want{s} to {clause}",
    "{You} now also want{s} to {clause}",
    "Also, {you} want to {clause}",
    "Then {you} want to {clause}",
    "Then {you} would like to {clause}",
    "After that, {you} want to {clause}",
    "After that, {you} also want to {clause}",
    "In addition, {you} want to {clause}",
    "Additionally, {you} need to {clause}",
    "Besides that, {you} want to {clause}",
    "Apart from that, {you} need to {clause}",
    "Once that is done, {you} want to {clause}",
    "As {you} are at it, {you} also want to {clause}",
    "At the same time, {you} want to {clause}",
    "On top of that, {you} would like to {clause}",
    "There is another thing: {you} want to {clause}",
    "There is another matter, as {you} also want to {clause}",
    "Another wish is to {clause}",
    "Separately, {you} want to {clause}",
    "{You} remember{s} something else: {you} want to {clause}",
    "When this is settled, {you} also want to {clause}",
    "Moreover, {you} would like to {clause}",
    "And {you} want to {clause}",
)

LAST_FRAMES = (
    "Finally, {you} want to {clause}",
    "Lastly, {you} want to {clause}",
    "Finally, {you} would also like to {clause}",
    "The last thing {you} want is to {clause}",
    "At the end, {you} also want to {clause}",
    "One last thing: {you} want to {clause}",
)

COUNTED = (
    "{You} {have} {count} requests.",
    "{You} want{s} to get {count} things done.",
    "{You} need{s} help with {count} things.",
    "There are {count} things {you} want.",
    "{You} bring{s} up {count} matters.",
)
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}

FALLBACKS = (
    "If that is not possible, {you} want it left exactly as it is",
    "If that is not possible, {you} do not want anything else instead",
    "If it is not possible, {you} will not do anything about it",
    "If this cannot be done, {you} do not want an alternative",
    "If this cannot be done, {you} want to keep it as it is",
    "If the agent says that it is not possible, {you} accept that and want nothing else in its "
    "place",
    "If the agent says no, {you} do not insist and want no substitute",
    "If the agent says that the rules do not allow it, {you} accept that",
    "If the agent refuses, {you} complain briefly but accept it",
    "If the agent tells {me} that it cannot be done, {you} ask why, but then leave it at that",
    "If not, {you} want to leave it as it is",
    "If the agent says that this is not possible, {you} will accept it and want nothing else",
    "If the agent says no, {you} will mention that {you} have been a customer for years, but "
    "accept it in the end",
    "If the agent cannot do that, {you} are ok with leaving it as it is",
    "If the agent declines, {you} will ask once more and then accept it",
    "Even if the agent offers something else, {you} do not want it instead",
    "{You} will be persistent about it, but {you} will accept a clear no and want nothing else",
    "{You} {are} ok with a no, and {do} not want anything else in that case",
    "If and only if it is allowed, {you} want it; otherwise nothing should be done",
    "If it is against the policy, {you} want everything about it to stay the same",
)
MERGED_FALLBACKS = (
    "; if that is not possible, {you} want it left exactly as it is",
    " (if not possible, {you} do not want anything else done about it)",
    "; if it cannot be done, {you} want nothing else instead",
    ", but if that is not possible {you} do not want any alternative",
    "; this is only wanted if the rules allow it",
)

QUESTIONS = (
    "{You} want{s} to know {subject}",
    "{You} would like to know {subject}",
    "{You} also want{s} to know {subject}",
    "{You} ask{s} the agent for {subject}",
    "{You} want{s} the agent to tell {me} {subject}",
    "{You} want{s} to be told {subject}",
    "{You} want{s} to know how much it is: {subject}",
    "{You} will ask for {subject}",
    "{You} want{s} to be sure about the money, so the agent should tell {me} {subject}",
    "{You} {are} not good at math and want{s} the agent to work out {subject}",
)
AMOUNT_QUESTIONS = (QUESTIONS[3], *QUESTIONS[6:])
"""Questions that fit an amount only."""
MERGED_QUESTIONS = (
    ", and {you} want to know {subject}",
    ", and {you} also want to know {subject}",
    ", and {you} want to be told {subject}",
    "; {you} want to know {subject} too",
    " (the agent should say {subject})",
)

DETAIL_SEPARATORS = ("; ", ", and ", ". ", ". ", ". ", ". Also, ", " - ")
"""Between a request and a detail of it; those with a full stop begin a new sentence."""
LATE_DETAILS = (
    "{detail}",
    "{detail}",
    "one more detail: {detail}",
    "for the request, {detail}",
    "to be clear, {detail}",
    "what {you} have not said yet: {detail}",
    "when it comes to the details, {detail}",
)

NEXT_SENTENCE = " / "
IDENTITIES = (
    "{You} {are} {name} / {Your} {label} is {value}.",
    "{You} {are} {name} / {Your} {label} is {value}.",
    "{Your} name is {name} / {Your} {label} is {value}.",
    "{Your} name is {name} and {your} {label} is {value}.",
    "{Your} name is {name} and {your} {label} is {value}.",
    "{You} {are} {name} and {your} {label} is {value}.",
    "{You} {are} {name}, and {your} {label} is {value}.",
    "{You} {are} {name} with the {label} {value}.",
    "{You} {are} {name} ({label} {value}).",
    "{You} {are} {name}, {label} {value}.",
    "{Your} {label} is {value} / {Your} name is {name}.",
    "{Your} {label} is {value} and {your} name is {name}.",
    "{Your} full name is {name}; the {label} on {your} account is {value}.",
)
HOME_IDENTITIES = (
    "{You} {are} {name} from {home}, {value}.",
    "{You} {are} {name}, and {you} live in {home}, {label} {value}.",
    "{Your} name is {name} and {you} live in {home}, {value}.",
    "{You} {are} {name} living in {home} ({label} {value}).",
    "{You} {are} {name} in {home}, {label} {value}.",
)
"""Identities of a customer whose place is known; ``{value}`` is a zip code."""
LATE_IDENTITIES = (
    "The customer gave the name {name} and the {label} {value}.",
    "This is from {name}, whose {label} is {value}.",
    "The customer's name is {name} and their {label} is {value}.",
    "Name and {label} of the customer: {name}, {value}.",
    "The account belongs to {name} ({label} {value}).",
)
FIELDS = (
    "Customer: {name}. {Label}: {value}.",
    "Name: {name}, {label}: {value}.",
    "Customer name: {name}, {label}: {value}.",
    "{name} | {label} {value} |",
    "From: {name} ({label}: {value}).",
)
QUOTE_OPENINGS = (
    "{name} ({label} {value}) writes:",
    "Message from {name}, {label} {value}:",
    "{name}, {label} {value}, says:",
    "Transcript of a message by {name}, whose {label} is {value}:",
    "The customer {name} ({label} {value}) sent this message:",
)
GREETINGS = ("Hello,", "Hi,", "Hi there,", "Good morning,", "Dear team,", "Hello, I need help.", "")
LETTER_IDENTITIES = (
    "my name is {name} and my {label} is {value}.",
    "this is {name}, {label} {value}.",
    "I am {name} and my {label} is {value}.",
    "I am {name} ({label}: {value}).",
)
SIGNATURES = (
    "Thank you, {name} ({label}: {value})",
    "Best regards, {name}, {label} {value}.",
    "Thanks! {name}. My {label} is {value}.",
    "My name is {name} and my {label} is {value}.",
    "{name}, {label} {value}",
)
CONSENTS_OF_LETTERS = (
    "I agree to all of this.",
    "I confirm everything above, so there is no need to ask me again.",
    "You have my yes for every change that I asked for.",
    "Please go ahead with all of it if the details are right.",
    "I have thought about all of it and agree.",
)
CONSENTS_OF_TICKETS = (
    "{You} {have} confirmed all of this.",
    "{You} agree{s} to every change described here.",
    "{You} {have} agreed to all details.",
    "{You} {have} said yes to each of these changes.",
    "Everything here was confirmed by the customer.",
    "Whatever the policy rules out stays undone.",
    "{You} want{s} no substitute for what is not allowed.",
    "No further confirmation is needed.",
)

CONFIRMATIONS = (
    "If the agent asks {me} to confirm and the details are right, {you} say yes.",
    "When the agent lists details that match {your} request, {you} say yes.",
    "{You} confirm{s} every action that is exactly what {you} asked for.",
    "{You} say{s} yes to details that fit {your} request and correct{s} those that do not.",
    "If the agent asks for confirmation, {you} agree.",
    "{You} say{s} yes when the agent repeats {your} request correctly.",
    "{You} {are} okay with what comes of {your} requests.",
    "{You} {do} not want to do anything else.",
    "{You} want{s} to get this done quickly.",
)

TRAITS = (
    "polite", "patient", "brief", "direct", "organized", "outgoing", "calm", "friendly", "cautious",
    "impatient", "curious", "shy", "rigid", "logical", "confident", "optimistic", "pessimistic",
    "creative", "independent", "dependent", "messy", "busy", "anxious", "sad", "private", "precise",
    "cheerful", "tired", "formal", "nervous", "insecure", "emotional", "persistent", "rude",
)  # fmt: skip
MORE_TRAITS = (
    "flexible", "sarcastic", "forgetful", "talkative", "terse", "relaxed", "honest", "sceptical",
    "absent-minded", "thrifty", "quiet", "serious", "distracted", "stubborn", "easygoing", "blunt",
)  # fmt: skip
PERSONAS = (
    "{You} {are} {first}, {second}, {third}.",
    "{You} {are} {first}, {second} and {third}.",
    "{You} {are} {first} and {second}.",
    "{You} {are} {first} and {second} but {third}.",
    "{You} {are} a {first} and {second} person.",
    "{You} {are} very {first} today and a bit {second}.",
    "{You} {are} {first}.",
    "{You} {are} a {first} person.",
)
HABITS = (
    "{You} like{s} to say one thing at a time.",
    "{You} prefer{s} short answers.",
    "{You} {do} not want to repeat what {you} have already said.",
    "{You} {do} not like to share more than what is needed.",
    "{You} only answer{s} what {you} are asked.",
    "{You} make{s} typos and {do} not care.",
    "{You} {are} in a hurry and want{s} to be done with this soon.",
    "{You} {are} not in a good mood today.",
    "{You} expect{s} the agent to find out what {you} do not know.",
    "{You} tell{s} a long story before {you} come to the point.",
    "{You} mention{s} all requests at once.",
    "{You} get{s} annoyed if the agent asks for the same thing twice.",
    "{You} {do} not know the rules and expect{s} the agent to explain them.",
    "{You} thank{s} the agent at the end.",
    "{You} {are} a bit absent minded.",
    "This is urgent.",
    "{You} will be persistent if the agent hesitates.",
    "{You} will mention all of this at the beginning.",
    "{You} will make sure that nothing is forgotten.",
    "{You} will ask the agent to confirm the result at the end.",
    "{You} {do} not want to reveal much about {your} life.",
    "{You} want{s} to get everything done in one go.",
    "{You} want{s} to pay as little as possible.",
    "{You} {are} willing to wait while the agent checks.",
    "{You} {do} not care about small talk.",
    "{You} speak{s} in short sentences and {do} not offer information that was not asked for.",
    "{You} will not give any information unless the agent asks for it.",
    "{You} tend{s} to change the subject but come{s} back to it.",
)
