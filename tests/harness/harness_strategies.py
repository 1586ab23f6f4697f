"""Hypothesis strategies for harnesses; a small pool of words makes collisions likely."""

from hypothesis import strategies as st

from harness.model import Demonstration, Harness, Protocol, Skill, SkillBank

WORDS = ("ride", "Red", "K07", "change", "lines", "新宿", "check", "stop.", "Use", "each")

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
optional_texts = st.one_of(st.just(""), texts)


@st.composite
def harnesses(draw, min_skills=0, min_demonstrations=0):
    """A valid harness of the metro family with up to four skills and two demonstrations."""
    count = draw(st.integers(min_skills, 4))
    skills = tuple(
        Skill(
            skill_id=f"s{number}",
            title=f"Title {number}",
            trigger=draw(texts),
            action=f"{draw(texts)} {number}",
            guard=draw(optional_texts),
            check=draw(optional_texts),
        )
        for number in range(count)
    )
    demonstrations = tuple(
        Demonstration(
            demonstration_id=f"d{number}",
            task_id=f"t{number}",
            inputs={"question": draw(texts), "map": draw(texts)},
            completion=f"<reasoning>{draw(texts)}</reasoning><response>{draw(texts)}</response>",
        )
        for number in range(draw(st.integers(min_demonstrations, 2)))
    )
    return Harness(
        family="metro",
        input_template="{question}\n{map}",
        instructions="Find the route.",
        bank=SkillBank(how_to_use=draw(optional_texts), skills=skills),
        protocol=Protocol(selection=draw(optional_texts), execution=draw(texts)),
        demonstrations=demonstrations,
        output_contract="Answer in tags.",
    )
