"""What an instance's settings come to: class → policy → instance."""

import pytest

from tailkeeper.api.defaults import DEFAULTS
from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import Effective, InvalidPolicy, initial_settings, resolve_all

DAY_MS = 86_400_000


def spec(traffic_class: str = "online", *, instance: dict | None = None, **rest: object) -> dict:
    model = {"name": "m", "engine": "causal-lm", "path": "/models/m"}
    return {"trafficClass": traffic_class, "instances": [{"name": "one", "model": model, **(instance or {})}], **rest}


def effective(said: dict, name: str = "one") -> Effective:
    return resolve_all(PolicySpec.model_validate(said))[name]


def refused(said: dict) -> str:
    with pytest.raises(ValueError, match="spec") as error:
        PolicySpec.model_validate(said)
    return str(error.value)


def tiers(said: dict) -> dict[str, tuple]:
    return {
        tier.name: (tier.deadline_ms, tier.timeout_ms, tier.max_hold_ms, tier.preempts, tier.reserve_percent)
        for tier in effective(said).tiers
    }


class TestDefaults:
    """The table in the reference: name → deadline, timeout, hold in ms; preempts; reserve in percent."""

    def test_of_online(self) -> None:
        settings = effective(spec("online"))
        assert (settings.window_idle, settings.window_busy, settings.window_dynamic) == (64, 16, True)
        assert (settings.sla_ms, settings.default_tier, settings.priority_queue) == (1_000, "interactive", True)
        assert (settings.timeout_target_per_mille, settings.min_efficiency_percent) == (5, 70)
        assert (settings.first_token_sla_ms, settings.inter_token_sla_ms) == (None, None)
        assert tiers(spec("online")) == {
            "interactive": (1_000, 2_000, 20, True, 0),
            "standard": (5_000, 10_000, 5_000, False, 0),
            "batch": (60_000, 120_000, 60_000, False, 10),
        }

    def test_of_offline(self) -> None:
        settings = effective(spec("offline"))
        assert (settings.window_idle, settings.window_busy) == (256, 64)
        assert (settings.sla_ms, settings.default_tier) == (60_000, "batch")
        assert (settings.timeout_target_per_mille, settings.min_efficiency_percent) == (5, 90)
        assert tiers(spec("offline")) == {"batch": (60_000, None, 60_000, False, 0)}

    def test_fixed_has_no_longest_hold_but_the_one_that_is_said(self) -> None:
        said = spec("online", batching={"mode": "fixed"}, tiers=[{"name": "interactive"}, {"name": "batch"}])
        assert [tier.max_hold_ms for tier in effective(said).tiers] == [1_000, 60_000]
        said["tiers"][0]["maxHoldMs"] = 0
        assert [tier.max_hold_ms for tier in effective(said).tiers] == [0, 60_000]

    def test_class_is_online_where_not_said(self) -> None:
        said = spec()
        del said["trafficClass"]
        assert effective(said).traffic_class is TrafficClass.ONLINE

    @pytest.mark.parametrize(
        ("engine", "source", "mode"),
        [
            ("causal-lm", {"path": "/m"}, Mode.CONTINUOUS),
            ("upstream", {"url": "http://vllm:8000"}, Mode.CONTINUOUS),
            ("encoder", {"path": "/m"}, Mode.REQUEST),
            ("module", {"factory": "a:b"}, Mode.REQUEST),
            ("triton", {"url": "grpc://triton:8001"}, Mode.REQUEST),
        ],
    )
    def test_mode_follows_the_engine(self, engine: str, source: dict, mode: Mode) -> None:
        assert effective(spec(instance={"model": {"name": "m", "engine": engine, **source}})).mode is mode


class TestInheritance:
    @pytest.mark.parametrize("traffic_class", list(TrafficClass))
    @pytest.mark.parametrize(
        ("field", "policy", "instance"),
        [
            ("mode", "fixed", "request"),
            ("windowDynamic", False, True),
            ("windowIdle", 300, 400),
            ("windowBusy", 4, 5),
            ("priorityQueue", False, True),
            ("firstTokenSlaMs", 7, 8),
            ("interTokenSlaMs", 7, 8),
            ("timeoutTargetPerMille", 0, 1),
            ("minEfficiencyPercent", 0, 1),
            ("tailLatencySlaMs", 70, 80),
        ],
    )
    def test_nearer_wins(self, traffic_class: str, field: str, policy: object, instance: object) -> None:
        name = {"tailLatencySlaMs": "sla_ms"}.get(field) or "".join(
            f"_{letter.lower()}" if letter.isupper() else letter for letter in field
        )
        from_policy = effective(spec(traffic_class, batching={field: policy}))
        from_both = effective(spec(traffic_class, batching={field: policy}, instance={"batching": {field: instance}}))
        assert getattr(from_policy, name) == policy
        assert getattr(from_both, name) == instance

    def test_an_instance_leaves_the_others_alone(self) -> None:
        said = spec(batching={"windowBusy": 4}, instance={"batching": {"windowBusy": 8}})
        said["instances"].append({**said["instances"][0], "name": "two", "batching": {"windowIdle": 12}})
        assert effective(said, "one").window_busy == 8
        assert (effective(said, "two").window_busy, effective(said, "two").window_idle) == (4, 12)

    def test_tiers_merge_by_name_and_field(self) -> None:
        said = spec(
            tiers=[{"name": "batch", "reservePercent": 20, "maxHoldMs": 9}, {"name": "interactive", "preempts": False}],
            instance={"tiers": [{"name": "batch", "maxHoldMs": 0}]},
        )
        assert tiers(said) == {
            "interactive": (1_000, 2_000, 20, False, 0),
            "batch": (60_000, 120_000, 0, False, 20),
        }

    def test_tiers_of_the_policy_are_all_there_are(self) -> None:
        assert list(tiers(spec(tiers=[{"name": "standard"}]))) == ["standard"]

    def test_tiers_go_from_the_shortest_deadline_to_the_longest(self) -> None:
        said = spec(tiers=[{"name": "slow", "deadlineMs": 9}, {"name": "fast", "deadlineMs": 3}], defaultTier="slow")
        assert list(tiers(said)) == ["fast", "slow"]


class TestWindows:
    def test_a_bound_given_alone_draws_the_other_along(self) -> None:
        small = effective(spec(batching={"windowIdle": 8}))
        large = effective(spec(batching={"windowBusy": 100}))
        assert (small.window_idle, small.window_busy) == (8, 8)
        assert (large.window_idle, large.window_busy) == (100, 100)


class TestSla:
    def test_class_deadlines_are_multiples_of_it(self) -> None:
        deadlines = {name: each[0] for name, each in tiers(spec(batching={"tailLatencySlaMs": 200})).items()}
        assert deadlines == {"interactive": 200, "standard": 1_000, "batch": 12_000}

    def test_deadline_of_the_default_tier_is_the_same_value(self) -> None:
        by_deadline = effective(spec(tiers=[{"name": "interactive", "deadlineMs": 200}, {"name": "batch"}]))
        by_sla = effective(spec(batching={"tailLatencySlaMs": 200}, tiers=[{"name": "interactive"}, {"name": "batch"}]))
        assert by_deadline == by_sla

    def test_instance_wins_under_either_name(self) -> None:
        policy_says_sla = spec(
            batching={"tailLatencySlaMs": 200}, instance={"tiers": [{"name": "interactive", "deadlineMs": 300}]}
        )
        policy_says_deadline = spec(
            tiers=[{"name": "interactive", "deadlineMs": 200}], instance={"batching": {"tailLatencySlaMs": 300}}
        )
        assert effective(policy_says_sla).sla_ms == effective(policy_says_deadline).sla_ms == 300

    def test_of_the_policy_belongs_to_the_policys_default_tier(self) -> None:
        """An instance for batch work in a policy for chat keeps the batch deadline, not the chat's SLA."""
        said = spec(
            batching={"tailLatencySlaMs": 500},
            tiers=[{"name": "interactive"}, {"name": "batch", "deadlineMs": 40_000}],
            instance={"defaultTier": "batch"},
        )
        assert effective(said).sla_ms == 40_000
        assert tiers(said)["interactive"][0] == 500

    def test_the_nearest_sla_measures_the_tiers_that_say_nothing(self) -> None:
        of_policy = {"batching": {"tailLatencySlaMs": 500}, "instance": {"defaultTier": "batch"}}
        of_instance = {"instance": {"defaultTier": "batch", "batching": {"tailLatencySlaMs": 6_000}}}
        only_other_tier = {"instance": {"defaultTier": "batch"}, "tiers": [
            {"name": "interactive"}, {"name": "standard"}, {"name": "batch", "deadlineMs": 6_000}]}  # fmt: skip
        assert tiers(spec(**of_policy))["standard"][0] == 5 * 500
        assert tiers(spec(**of_instance))["standard"][0] == 5 * 6_000 // 60
        assert tiers(spec(**only_other_tier))["standard"][0] == 5 * 6_000 // 60

    def test_another_default_tier_of_the_class_takes_its_multiple(self) -> None:
        assert effective(spec(defaultTier="standard")).sla_ms == 5_000
        assert effective(spec(batching={"tailLatencySlaMs": 300}, instance={"defaultTier": "standard"})).sla_ms == 1_500

    def test_first_tier_is_the_default_where_the_class_has_no_choice_among_them(self) -> None:
        said = spec(tiers=[{"name": "gold", "deadlineMs": 70}, {"name": "batch"}])
        assert (effective(said).default_tier, effective(said).sla_ms) == ("gold", 70)
        assert tiers(said)["batch"][0] == 70 * 60

    def test_deadlines_end_at_one_day(self) -> None:
        said = spec(batching={"tailLatencySlaMs": DAY_MS}, instance={"tiers": [{"name": "batch", "timeoutMs": DAY_MS}]})
        assert [each[:2] for each in tiers(said).values()] == [(DAY_MS, DAY_MS)] * 3


class TestRefusals:
    """Each names the field at fault, the instance, and the values."""

    @pytest.mark.parametrize(
        ("said", "field", "part"),
        [
            (spec(defaultTier="gold"), "spec.defaultTier", "tier gold is not one of interactive, standard, batch"),
            (spec("offline", defaultTier="interactive"), "spec.defaultTier", "is not one of batch"),
            (spec(instance={"defaultTier": "gold"}), "spec.instances[one].defaultTier", "tier gold"),
            (spec(instance={"tiers": [{"name": "gold"}]}), "spec.instances[one].tiers", "tier gold is not one of"),
            (
                spec(tiers=[{"name": "batch"}], instance={"tiers": [{"name": "interactive"}]}),
                "spec.instances[one].tiers",
                "tier interactive is not one of batch",
            ),
            (spec(tiers=[{"name": "gold"}]), "spec.instances[one].tiers", "tier gold needs deadlineMs"),
            (
                spec(batching={"tailLatencySlaMs": 5}, tiers=[{"name": "interactive", "deadlineMs": 6}]),
                "spec.batching.tailLatencySlaMs",
                "5 differs from deadlineMs 6",
            ),
            (
                spec(
                    instance={
                        "batching": {"tailLatencySlaMs": 5},
                        "defaultTier": "batch",
                        "tiers": [{"name": "batch", "deadlineMs": 6}],
                    }
                ),
                "spec.instances[one].batching.tailLatencySlaMs",
                "of default tier batch",
            ),
            (
                spec(batching={"windowIdle": 8}, instance={"batching": {"windowBusy": 9}}),
                "spec.instances[one].batching.windowBusy",
                "windowBusy (9) must not exceed windowIdle (8)",
            ),
            (
                spec(batching={"windowBusy": 9}, instance={"batching": {"windowIdle": 8}}),
                "spec.instances[one].batching.windowBusy",
                "windowBusy (9) must not exceed windowIdle (8)",
            ),
            (
                spec(instance={"tiers": [{"name": "batch", "timeoutMs": 30_000}]}),
                "spec.instances[one].tiers",
                "tier batch: timeoutMs (30000) is under its deadlineMs (60000)",
            ),
            (
                spec(
                    tiers=[{"name": "interactive", "timeoutMs": 2_000}],
                    instance={"batching": {"tailLatencySlaMs": 2_001}},
                ),
                "spec.instances[one].tiers",
                "timeoutMs (2000)",
            ),
            (
                spec(instance={"tiers": [{"name": "interactive", "reservePercent": 81}]}),
                "spec.instances[one].tiers",
                "reservePercent adds up to 91",
            ),
            (
                spec(
                    batching={"mode": "continuous"},
                    instance={"model": {"name": "m", "engine": "encoder", "path": "/m"}},
                ),
                "spec.instances[one].batching.mode",
                "engine encoder has no mode continuous",
            ),
        ],
    )
    def test_names_the_field(self, said: dict, field: str, part: str) -> None:
        assert f"{field}: " in refused(said)
        assert part in refused(said)

    def test_field_can_be_read(self) -> None:
        assert InvalidPolicy("spec.tiers", "why").field == "spec.tiers"


def test_initial_settings_are_the_spec_with_levers_wide_open() -> None:
    said = effective(spec(batching={"windowIdle": 40}))
    settings = initial_settings(said, policy_namespace="7b", policy="chat", model_instance="one", generation=3)
    assert (settings.ceiling, settings.window_idle, settings.margin_percent) == (40, 40, 10)
    assert (settings.token_budget, settings.moved, settings.generation) == (None, [], 3)
    assert settings.tiers == list(said.tiers)
    assert [tier.boost_ms for tier in settings.tiers] == [0, 0, 0]
    assert settings.sla_ms == said.sla_ms


def test_every_class_knows_its_default_tier() -> None:
    for defaults in DEFAULTS.values():
        assert defaults.tiers[defaults.default_tier].deadline_multiple == 1
