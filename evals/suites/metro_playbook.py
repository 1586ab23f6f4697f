"""Plays for metro harnesses, filed by fault kind.

A playbook is a drawer of ideas that people tend to try, sensible and foolish ones alike. Nothing in
it says which is which: no effect, label or order; telling them apart is the gate's work.
"""

from __future__ import annotations

from evals.suites.base import Play
from harness.edit import AddSkill, AppendExecution, SetExecution

_SKIPPED = ("missing_edge", "diverging_station")
_ENDS = ("wrong_endpoint", "reversed_route")
_MARKS = ("wrong_transfer_mark",)
_SHAPE = ("format_fault", "truncation")

PLAYS: tuple[Play, ...] = (
    Play(
        play_id="adjacent-stops",
        faults=(*_SKIPPED, *_ENDS),
        summary="Ask for a check that stations in a row are neighbours.",
        edits=(
            AddSkill(
                title="Adjacent stops",
                trigger="A route is ready.",
                action="Compare each pair of stations in the route with the map and repair any gap.",
                guard="Two stations in a row must be neighbours on a line.",
            ),
        ),
    ),
    Play(
        play_id="backward-list",
        faults=(*_ENDS, "diverging_station"),
        summary="Order the stations from destination to origin.",
        edits=(
            AddSkill(
                title="Order of the list",
                trigger="The stations are known.",
                action="Write the stations from the destination back to the origin.",
            ),
        ),
    ),
    Play(
        play_id="change-tag",
        faults=_MARKS,
        summary="Ask for the transfer mark at the station of the change.",
        edits=(
            AddSkill(
                title="Change tag",
                trigger="The route uses two lines.",
                action="Put (transfer) directly after the station where the rider changes lines.",
            ),
        ),
    ),
    Play(
        play_id="city-facts",
        faults=(*_SKIPPED, *_MARKS, *_SHAPE),
        summary="Add a sentence about the city.",
        edits=(AppendExecution(text="The metro of this city was built a long time ago and is well loved."),),
    ),
    Play(
        play_id="every-hop-noted",
        faults=(*_SKIPPED, *_MARKS),
        summary="Have every single move written with its line.",
        edits=(
            SetExecution(
                text="Move one station at a time: note each step to the next neighbour and the line it "
                "uses. When you reach the destination, give the route."
            ),
        ),
        demonstration_style="hops",
    ),
    Play(
        play_id="goal-implied",
        faults=("wrong_endpoint", "truncation"),
        summary="Leave the destination out of the list.",
        edits=(
            AddSkill(
                title="Known goal",
                trigger="The last stop comes up.",
                action="The rider knows the destination, so do not write it in the route.",
            ),
        ),
    ),
    Play(
        play_id="immediate-answer",
        faults=(*_SHAPE, "missing_edge"),
        summary="Have the route given without working.",
        edits=(SetExecution(text="Give the route right away and write no working before it."),),
        demonstration_style="direct",
    ),
    Play(
        play_id="legs-first",
        faults=(*_MARKS, *_ENDS, "diverging_station"),
        summary="Have the ride planned in legs before the route is written.",
        edits=(
            SetExecution(
                text="Begin with a plan of the legs: for each one its line and direction, where you get on "
                "and where you get off. Then write the route."
            ),
        ),
        demonstration_style="plan",
    ),
    Play(
        play_id="line-copied-out",
        faults=(*_SKIPPED, "wrong_endpoint"),
        summary="Have the needed lines copied in full before the stretch is cut out.",
        edits=(
            SetExecution(
                text="Copy all the stations of each line you need. From the copy, take the stretch between "
                "the start and the destination."
            ),
        ),
        demonstration_style="expand",
    ),
    Play(
        play_id="mark-all-stations",
        faults=_MARKS,
        summary="Put a transfer mark behind every station.",
        edits=(
            AddSkill(
                title="Marks everywhere",
                trigger="Any route is written.",
                action="Add (transfer) after each station of the route, whichever line it is on.",
            ),
        ),
    ),
    Play(
        play_id="no-gaps",
        faults=("missing_edge", "truncation", "diverging_station"),
        summary="Warn against leaving out stations on the way.",
        edits=(AppendExecution(text="Leave no station out on the way: verify each link before you answer."),),
    ),
    Play(
        play_id="one-line-only",
        faults=(*_MARKS, "diverging_station"),
        summary="Forbid line changes.",
        edits=(
            AddSkill(
                title="Single line",
                trigger="The route reaches an interchange.",
                action="Never change lines; stay on the first line until its last station.",
            ),
        ),
    ),
    Play(
        play_id="polite-service",
        faults=(*_ENDS, *_SHAPE, "diverging_station"),
        summary="Add a friendly remark about the service.",
        edits=(
            AddSkill(
                title="Friendly service",
                trigger="A passenger asks.",
                action="Passengers like a helpful and friendly service.",
            ),
        ),
    ),
    Play(
        play_id="return-trip",
        faults=("reversed_route", "missing_edge"),
        summary="Describe the trip from its end.",
        edits=(AppendExecution(text="Start the list with the destination and end it at the origin."),),
    ),
    Play(
        play_id="same-line-to-terminus",
        faults=("wrong_endpoint", "missing_edge"),
        summary="Ride the first line to its end.",
        edits=(AppendExecution(text="Keep to the line of the start and follow it to the terminus without a change."),),
    ),
    Play(
        play_id="short-list",
        faults=_SHAPE,
        summary="End the list before the destination to keep it short.",
        edits=(AppendExecution(text="End the list at the station just before the destination."),),
    ),
    Play(
        play_id="tags-in-full",
        faults=_SHAPE,
        summary="Remind of both tags.",
        edits=(
            AddSkill(
                title="Both sections",
                trigger="Before the reply ends.",
                action="Close the reasoning section, then open and close the response section.",
            ),
        ),
    ),
    Play(
        play_id="transfer-reminder",
        faults=(*_MARKS, "diverging_station"),
        summary="Remind of the transfer mark in the execution protocol.",
        edits=(AppendExecution(text="Whenever the line changes, the change station is written with (transfer)."),),
    ),
    Play(
        play_id="transfers-look-alike",
        faults=("wrong_transfer_mark", "missing_edge"),
        summary="Treat all stations as change stations.",
        edits=(AppendExecution(text="Treat each stop as a change and write (transfer) behind all of them."),),
    ),
    Play(
        play_id="two-readings",
        faults=(*_SKIPPED, *_ENDS),
        summary="Have the finished route proofread against the map.",
        edits=(
            AddSkill(
                title="Second reading",
                trigger="Before you answer.",
                action="Read the route again and make sure every hop is on the map and no stop is skipped.",
                check="All consecutive stations are neighbours.",
            ),
        ),
    ),
    Play(
        play_id="weather-note",
        faults=(*_SHAPE, *_ENDS, "missing_edge"),
        summary="Add a remark about the weather.",
        edits=(AppendExecution(text="The sun is shining over the city today."),),
    ),
    Play(
        play_id="who-changes-where",
        faults=(*_MARKS, *_ENDS),
        summary="Have the lines of origin and destination and their shared station named first.",
        edits=(
            AddSkill(
                title="Common station",
                trigger="Start and destination are on different lines.",
                action="Name the line of the start, the line of the destination and the station they share; change "
                "there and mark it with (transfer).",
            ),
        ),
    ),
)
"""In the order of their ids."""
