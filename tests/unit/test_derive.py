"""What is derived from a run's seed is the same on every machine, and in every later version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.derive import derived_random, derived_uuid, idempotency_key
from tests.unit.facts import SEED

OTHER_SEED = "ff" * 16


@pytest.mark.parametrize(
    ("step", "key", "uuid"),
    [
        ("0/pay#1", "hf_5a69ab02fb3acb6c8e24232bf0b7e85f10bc8cdf", "a1431287-ac62-4d4c-ab5d-ab669fa97691"),
        ("0/=order-42", "hf_889731f0daeaa16319b607e384ea5dd4d4e09903", "cfaf3ea5-1245-48fe-8d41-9e4abbb7dfa5"),
        ("1/pay#1", "hf_ce3ad83dc5ec1119154d4db0ca7c03004aa18598", "05940e1c-833f-45c3-ba4c-87d0d561b973"),
        ("0/gather#1.0/pay#1", "hf_1633d6d5dfbc39a9f96495e275260f987cb7f6ce", "42879cd6-85b2-4813-bf75-4c050a2b21c9"),
    ],
)
def test_keys_and_ids_never_change(step: str, key: str, uuid: str) -> None:
    """A payment asked for by one version is recognised when the next one asks again."""
    assert idempotency_key(SEED, step) == key
    assert str(derived_uuid(SEED, step)) == uuid
    assert derived_uuid(SEED, step).version == 4


def test_chance_never_changes() -> None:
    """A run that drew numbers draws the same ones after an upgrade."""
    chance = derived_random(SEED, "0")
    drawn = [
        chance.random(),
        chance.random(),
        chance.randrange(10**9),
        chance.choice("abc"),
        chance.sample(range(100), 3),
    ]
    assert drawn == [0.7046283504446379, 0.6100644444459774, 571267263, "a", [95, 21, 54]]
    assert derived_random(SEED, "1").random() == 0.03047967452915612


@given(st.text(min_size=1), st.text(min_size=1))
def test_runs_steps_and_purposes_do_not_share(one: str, other: str) -> None:
    """Another run, another step, another purpose: another value."""
    assert (idempotency_key(SEED, one) == idempotency_key(SEED, other)) == (one == other)
    assert idempotency_key(SEED, one) != idempotency_key(OTHER_SEED, one)
    assert derived_uuid(SEED, one) != derived_uuid(OTHER_SEED, one)
    assert derived_uuid(SEED, one).hex[:12] not in idempotency_key(SEED, one)
    assert derived_random(SEED, one).random() != derived_random(OTHER_SEED, one).random()
