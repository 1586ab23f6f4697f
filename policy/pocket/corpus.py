"""The pocket policy's pretraining corpus: harness wordings, metro tasks and traces that follow them.

What the corpus teaches, and so what a harness can later do with this policy:

* the execution protocol decides how much working a trace shows; a vague one leaves it open;
* a worked example in the prompt decides it where the protocol is vague;
* like traces in any corpus most are sloppy: a station is skipped, the transfer mark forgotten, a
  tag left out. Wording that asks for checked hops, or for the mark, precedes traces that comply;
* misleading rules are followed too; neutral sentences change nothing.

Every draw comes from the ``random.Random`` passed in. Maps whose fingerprint a suite split holds
are refused by the caller (:mod:`policy.pocket.pretrain`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from evals.suites.metro_network import STATION_CODES, Network, NetworkShape, draw_lines
from evals.suites.metro_text import (
    CONTRACT,
    INPUT_TEMPLATE,
    INSTRUCTIONS,
    STYLES,
    TRANSFER_MARK,
    Leg,
    SolutionStyle,
    completion_text,
    directed_lines,
    map_text,
    question_text,
    route_text,
    working_text,
)
from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank
from harness.records import Message
from harness.render import fill, render

MISLEADING = ("reverse", "skip_end", "no_change", "mark_all")
PROTOCOL_SHARES = {"direct": 0.2, "plan": 0.2, "expand": 0.2, "hops": 0.2, "vague": 0.2}
VAGUE_STYLE_SHARES = {"direct": 0.4, "plan": 0.2, "expand": 0.2, "hops": 0.2}
MISLEADING_SHARE = 0.2
MARK_SHARE = 0.4
CAREFUL_SHARE = 0.4
DEMONSTRATION_SHARE = 0.25
SLOPPY_RATES = {"direct": 0.5, "expand": 0.4, "plan": 0.3, "hops": 0.15}
"""Share of traces without a call for care whose answer has one wrong hop: less working, more slips."""
FORGOTTEN_MARK_RATES = {"direct": 0.7, "expand": 0.6, "plan": 0.4, "hops": 0.3}
"""Share of traces without a call for the mark that leave it out."""
TAG_FAULT_RATE = 0.08
WORD_DROP_RATE = 0.2

_INSTRUCTIONS = (
    INSTRUCTIONS,
    "Find the shortest route on the metro map.",
    "You answer metro route questions.",
    "Give the shortest route between two stations.",
    "Task: metro route with the fewest stops.",
)
_TITLES = (
    "Interchange", "Route reading", "Map use", "Line choice", "Direction", "Transfer", "Final answer", "Legs",
    "Stations", "Travel plan", "Format", "Order of stops", "Start and goal", "Double check", "Ride",
)  # fmt: skip
_TRIGGERS = (
    "Any route question.", "Every task.", "The route uses two lines.", "Start and goal are given.",
    "Before you answer.", "Always.", "When a map is given.", "When the route changes lines.", "A new question.",
)  # fmt: skip
_HOW_TO = (
    "Use the skills below.", "Apply every skill whose trigger fits.", "Skills help you to solve the task.",
    "Read the skills before you start.", "Follow these skills.",
)  # fmt: skip
_SELECTION = (
    "Select the skills that fit.", "Choose skills by their trigger.", "Pick the skills you need.",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One pretraining sample."""

    messages: tuple[Message, ...]
    completion: str
    fingerprint: str
    """Of the map that the question is about."""


@dataclass(frozen=True)
class Directives:
    """What a harness wording asks for."""

    protocol: str
    is_marked: bool
    is_careful: bool
    misleading: str = ""


@dataclass(frozen=True)
class Question:
    """A question on a map and the legs of its route."""

    network: Network
    legs: tuple[Leg, ...]

    @property
    def inputs(self) -> dict[str, str]:
        """Named texts for the input template."""
        return {
            "question": question_text(self.legs[0].stops[0], self.legs[-1].stops[-1]),
            "map": map_text(self.network),
        }


@cache
def wordings(directive: str) -> tuple[str, ...]:
    """Training wordings of a directive, one a line in ``corpus/<directive>.txt``."""
    text = files("policy.pocket").joinpath(f"corpus/{directive}.txt").read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def say(directive: str, rng: random.Random) -> str:
    """A training wording of a directive; half of them lose some words, so that no single word carries it."""
    words = rng.choice(wordings(directive)).split()
    if len(words) > 6 and rng.random() < 0.5:
        words = [word for word in words if word.startswith("(") or rng.random() > WORD_DROP_RATE]
    return " ".join(words)


def pick(shares: Mapping[str, float], rng: random.Random) -> str:
    """Draw a key with probability proportional to its share."""
    return rng.choices(list(shares), weights=list(shares.values()))[0]


def ride(network: Network, line: str, start: str, goal: str) -> Leg:
    """The leg on ``line`` from ``start`` to ``goal``, which stands later in the line's listing."""
    stops = network.lines[line]
    return Leg(f"{line}+", stops[stops.index(start) : stops.index(goal) + 1])


def draw_question(line_count: int, change_count: int, stops: tuple[int, int], rng: random.Random) -> Question:
    """Draw a map and a question whose route changes lines ``change_count`` times (at most 1)."""
    while True:
        network = Network(draw_lines(NetworkShape(line_count, *stops), STATION_CODES, rng))
        if change_count == 0:
            line = rng.choice(list(network.lines))
            start, goal = sorted(rng.sample(network.lines[line], 2), key=network.lines[line].index)
            return Question(network, (ride(network, line, start, goal),))
        hub = rng.choice([station for station in network.stations() if len(network.lines_of(station)) > 1])
        one, two = rng.sample(network.lines_of(hub), 2)
        before = network.lines[one][: network.lines[one].index(hub)]
        after = network.lines[two][network.lines[two].index(hub) + 1 :]
        starts = [stop for stop in before if len(network.lines_of(stop)) == 1]
        goals = [stop for stop in after if len(network.lines_of(stop)) == 1]
        if starts and goals:
            return Question(
                network, (ride(network, one, rng.choice(starts), hub), ride(network, two, hub, rng.choice(goals)))
            )


def draw_harness(directives: Directives, style: SolutionStyle, rng: random.Random) -> Harness:
    """Word the directives: the protocol in P, the others in skills, neutral sentences anywhere."""
    asks = [name for name, on in (("mark_transfer", directives.is_marked), ("careful", directives.is_careful)) if on]
    asks += [directives.misleading] if directives.misleading else []
    asks += ["neutral"] * rng.choices((0, 1, 2), weights=(6, 3, 1))[0]
    rng.shuffle(asks)
    execution = [say(directives.protocol, rng)]
    skills: list[Skill] = []
    for number, ask in enumerate(asks):
        text = say(ask, rng)
        where = rng.random()
        if where < 0.3:
            execution.insert(rng.choice((0, len(execution))), text)
            continue
        extra = [say("neutral", rng) if rng.random() < 0.15 else "" for _ in range(2)]
        fields = {"action": text, "guard": extra[0], "check": extra[1]}
        if where > 0.6:
            slot = rng.choice(("guard", "check"))
            fields = {"action": say("neutral", rng) if rng.random() < 0.5 else "Do it.", slot: text}
        skills.append(
            Skill(
                skill_id=f"s{number}", title=f"{rng.choice(_TITLES)} {number}", trigger=rng.choice(_TRIGGERS), **fields
            )
        )
    demonstrations: tuple[Demonstration, ...] = ()
    if rng.random() < DEMONSTRATION_SHARE:
        shown = draw_question(2, rng.choice((0, 1, 1)), (3, 4), rng)
        answer = completion_text(working_text(shown.network, shown.legs, style), route_text(shown.legs))
        demonstrations = (Demonstration(demonstration_id="d", task_id="d", inputs=shown.inputs, completion=answer),)
    return Harness(
        family="metro",
        input_template=INPUT_TEMPLATE,
        instructions=rng.choice(_INSTRUCTIONS),
        bank=SkillBank(how_to_use=rng.choice(_HOW_TO) if skills and rng.random() < 0.5 else "", skills=tuple(skills)),
        protocol=Protocol(
            selection=rng.choice(_SELECTION) if skills and rng.random() < 0.3 else "", execution=" ".join(execution)
        ),
        demonstrations=demonstrations,
        output_contract=CONTRACT,
    )


def misled_answer(question: Question, rule: str) -> str:
    """The answer string of a trace that follows a misleading rule."""
    legs = question.legs
    stops = list(legs[0].stops) + [stop for leg in legs[1:] for stop in leg.stops[1:]]
    if rule == "reverse":
        back = [Leg(leg.label, tuple(reversed(leg.stops))) for leg in reversed(legs)]
        return route_text(back)
    if rule == "skip_end":
        shorter = [*legs[:-1], Leg(legs[-1].label, legs[-1].stops[:-1])]
        return route_text(shorter)
    if rule == "no_change":
        line = directed_lines(question.network)[legs[0].label]
        return "-".join(line[line.index(legs[0].stops[0]) :])
    if rule == "mark_all":
        return "-".join(stop + TRANSFER_MARK for stop in stops)
    raise ValueError(f"unknown misleading rule {rule!r}; known: {MISLEADING}")


def sloppy_answer(answer: str, rng: random.Random) -> str:
    """Put one wrong hop into a route: a station skipped, said twice, or the end left out."""
    parts = answer.split("-")
    fault = rng.random()
    if fault < 0.6 and len(parts) > 2:
        del parts[rng.randrange(1, len(parts) - 1)]
    elif fault < 0.8:
        spot = rng.randrange(len(parts))
        parts.insert(spot, parts[spot])
    else:
        parts.pop()
    return "-".join(parts)


def trace_text(question: Question, directives: Directives, style: SolutionStyle, rng: random.Random) -> str:
    """Write the completion that the corpus holds for this question under these directives."""
    working = working_text(question.network, question.legs, style)
    if directives.misleading:
        return completion_text(working, misled_answer(question, directives.misleading))
    answer = route_text(question.legs)
    if not directives.is_marked and rng.random() < FORGOTTEN_MARK_RATES[style]:
        answer = answer.replace(TRANSFER_MARK, "")
    if directives.is_careful:
        return completion_text(working, answer)
    if rng.random() < SLOPPY_RATES[style]:
        answer = sloppy_answer(answer, rng)
    text = completion_text(working, answer)
    if rng.random() < TAG_FAULT_RATE:
        text = text.replace(rng.choice(("</reasoning>", "<response>", "<reasoning>")), "", 1)
    return text


def repeat_example(rng: random.Random) -> Example:
    """A row of codes to write again: forms the look-up circuit."""
    stops = rng.sample(STATION_CODES, rng.randint(4, 12))
    return Example((Message(role="user", content=" ".join(stops)),), "-".join(stops), "")


def listing_example(question: Question, rng: random.Random) -> Example:
    """One line of a map to write out by its label, or all rows of a shorter listing in another order."""
    rows = [(f"{name}+", stops) for name, stops in question.network.lines.items()]
    rng.shuffle(rows)
    if rng.random() < 0.4:
        listing = "\n".join(f"{label} {' '.join(stops)}" for label, stops in rows[:3])
        order = rng.sample(rows[:3], min(3, len(rows)))
        text = "; ".join(f"{label} {'-'.join(stops)}" for label, stops in order)
        return Example((Message(role="user", content=listing),), text, question.network.fingerprint)
    label, stops = rows[0]
    inputs = {"question": f"List {label}.", "map": map_text(question.network)}
    message = Message(role="user", content=fill(INPUT_TEMPLATE, inputs))
    return Example((message,), "-".join(stops), question.network.fingerprint)


def plain_example(question: Question, rng: random.Random) -> Example:
    """A route task under nothing but an execution protocol, with a flawless trace."""
    style = rng.choice(STYLES)
    messages = (
        Message(role="system", content=say(style, rng)),
        Message(role="user", content=fill(INPUT_TEMPLATE, question.inputs)),
    )
    directives = Directives(style, is_marked=True, is_careful=True)
    return Example(messages, trace_text(question, directives, style, rng), question.network.fingerprint)


def harness_example(question: Question, rng: random.Random) -> Example:
    """A route task under a whole harness, with a trace that follows its wording, slips included."""
    directives = Directives(
        protocol=pick(PROTOCOL_SHARES, rng),
        is_marked=rng.random() < MARK_SHARE,
        is_careful=rng.random() < CAREFUL_SHARE,
        misleading=rng.choice(MISLEADING) if rng.random() < MISLEADING_SHARE else "",
    )
    styles: dict[str, SolutionStyle] = {name: name for name in STYLES}
    style = styles[directives.protocol if directives.protocol in styles else pick(VAGUE_STYLE_SHARES, rng)]
    harness = draw_harness(directives, style, rng)
    text = trace_text(question, directives, style, rng)
    return Example(render(harness, question.inputs), text, question.network.fingerprint)


def draw_example(shares: Mapping[str, float], rng: random.Random) -> Example:
    """Draw one sample of a kind drawn by ``shares``: ``repeat``, ``listing``, ``plain`` or ``harness``."""
    kind = pick(shares, rng)
    if kind == "repeat":
        return repeat_example(rng)
    line_count = rng.choices((1, 2, 3), weights=(1, 4, 4))[0]
    question = draw_question(line_count, 0 if line_count == 1 else rng.choice((0, 1)), (4, 5), rng)
    makers = {"listing": listing_example, "plain": plain_example, "harness": harness_example}
    return makers[kind](question, rng)
