"""``looksam plan``: times from costs by their definitions, the paper's numbers next to them, and the command."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import types

import pytest

from looksam.cli import main
from looksam.trainer import plan, recipes
from looksam.trainer.plan import build, chips, notes, terminal
from looksam.trainer.plan.build import as_data, relative_flops
from looksam.trainer.plan.chips import Seconds, compared_programs, estimates, find_chip, seconds
from looksam.trainer.plan.fit import Fit, MemoryModel, Suggestion, suggestions
from looksam.trainer.plan.program import Collective, Cost, Memory
from looksam.trainer.recipe import Recipe

GIB = 2**30
LARGE = "vit_b16-lamb-32768-look_layer_sam"


def make_cost(flops=6e12, reductions=1, outputs=3e9, temporary=GIB, **changes):
    gradient = Collective("all-reduce", 400_000_000, 400_000_000, 8, 1, (), False, "gradient")
    memory = Memory(arguments=4 * GIB, outputs=int(outputs), aliased=int(outputs), temporary=temporary)
    fields = {"flops": int(flops), "collectives": (gradient,) * reductions, "memory": memory, "uncounted": ()}
    return Cost(**fields | changes)


def make_costs(**changes):
    one, two = make_cost(**changes), make_cost(**{"flops": 12e12, "reductions": 2} | changes)
    return {"base": one, "refresh": two, "reuse": one}


def test_public_names_are_sorted_and_load():
    assert plan.__all__ == sorted(plan.__all__) and all(getattr(plan, name) is not None for name in plan.__all__)
    with pytest.raises(AttributeError, match=r"'looksam.trainer.plan' has no attribute 'make'; it has CHIPS, "):
        plan.make  # noqa: B018


# --- the model of time ------------------------------------------------------------------------------------------


def test_seconds_are_work_over_speed():
    """A TPU v3 device is half a chip: 61.5 TFLOP/s, 450 GB/s of memory, 340/1024/2 TB/s to others."""
    found = seconds(make_cost(), find_chip("tpu-v3"), "bfloat16", 0.5)
    assert found.gradients == pytest.approx(6e12 / (61.5e12 * 0.5), rel=1e-12)
    assert found.state == pytest.approx(2 * 3e9 / 450e9, rel=1e-12)
    assert found.network == pytest.approx(2 * 400e6 * 7 / 8 / (340e12 / 2048), rel=1e-12)
    assert found.sequential == pytest.approx(found.gradients + found.state + found.network, rel=1e-12)
    assert found.overlapped == pytest.approx(found.gradients + found.state, rel=1e-12)


def test_the_slower_of_work_and_network_counts_if_they_overlap():
    assert Seconds(2.0, 1.0, 5.0).overlapped == 5.0
    assert Seconds(2.0, 4.0, 5.0).overlapped == 6.0


def test_float32_runs_at_tf32_on_gpu_and_as_bfloat16_on_tpu():
    cost = make_cost()
    times = {
        (name, dtype): seconds(cost, find_chip(name), dtype, 1.0).gradients
        for name in ("a100", "tpu-v4")
        for dtype in ("float32", "bfloat16")
    }
    assert times["a100", "float32"] == 2 * times["a100", "bfloat16"] == 6e12 / 156e12
    assert times["tpu-v4", "float32"] == times["tpu-v4", "bfloat16"] == 6e12 / 275e12


@pytest.mark.parametrize("utilisation", [0.0, -1.0, 1.5, float("nan")])
def test_a_utilisation_out_of_range_raises(utilisation):
    with pytest.raises(ValueError, match="utilisation=.*0 < utilisation <= 1"):
        seconds(make_cost(), find_chip("a100"), "float32", utilisation)


def test_an_unknown_chip_names_the_nearest():
    with pytest.raises(ValueError, match="chip 'tpu-3' is unknown; did you mean tpu-v3"):
        find_chip("tpu-3")


@pytest.mark.parametrize(
    ("method", "k", "shares"),
    [
        ("base", 5, {"base": {"base": 1}}),
        ("sam", 5, {"base": {"base": 1}, "sam": {"refresh": 1}}),
        ("look_sam", 4, {"base": {"base": 1}, "sam": {"refresh": 1}, "look_sam": {"refresh": 0.25, "reuse": 0.75}}),
        ("sam_k", 1, {"base": {"base": 1}, "sam": {"refresh": 1}, "sam_k": {"refresh": 1}}),
    ],
)
def test_which_programs_a_method_runs(method, k, shares):
    assert compared_programs(method, k) == shares


@pytest.mark.parametrize(
    ("method", "shares"),
    [
        ("base", {"base": {"base": 1}}),
        ("sam", {"base": {"base": 1}, "sam": {"base": 0.8, "refresh": 0.2}}),
        (
            "look_sam",
            {"base": {"base": 1}, "sam": {"refresh": 1}, "look_sam": {"base": 0.8, "refresh": 0.04, "reuse": 0.16}},
        ),
        ("msam", {"base": {"base": 1}, "msam": {"base": 0.8, "refresh": 0.2}}),
    ],
)
def test_a_late_method_runs_its_programs_on_a_share_of_the_steps(method, shares):
    found = compared_programs(method, 5, active=0.2)
    assert found.keys() == shares.keys()
    assert all(found[name] == pytest.approx(shares[name]) for name in shares)


def test_a_method_takes_the_time_of_its_cycle():
    """Five steps of Look-LayerSAM-5 are one refresh and four reuse steps, added up."""
    programs = {"base": Seconds(3.0, 1.0, 0.5), "refresh": Seconds(6.0, 1.1, 9.0), "reuse": Seconds(3.1, 1.2, 0.5)}
    base, layer_sam, look = estimates(programs, "look_layer_sam", 5, steps=7200)
    assert [e.method for e in (base, layer_sam, look)] == ["base", "layer_sam", "look_layer_sam"]
    cycle = (6.0 + 1.1 + 9.0) + 4 * (3.1 + 1.2 + 0.5)
    overlapped = 9.0 + 4 * (3.1 + 1.2)
    assert (base.hours, base.hours_overlapped, base.ratio) == (pytest.approx(4.5 * 2), pytest.approx(4.0 * 2), 1)
    assert (layer_sam.ratio, layer_sam.ratio_overlapped) == (pytest.approx(16.1 / 4.5), pytest.approx(9 / 4))
    assert (look.seconds, look.hours) == (pytest.approx(cycle / 5), pytest.approx(2 * cycle / 5))
    assert (look.seconds_overlapped, look.ratio_overlapped) == (
        pytest.approx(overlapped / 5),
        pytest.approx(overlapped / 20),
    )


def test_where_all_is_gradient_the_ratios_are_two_and_one_and_a_fifth():
    chip = find_chip("tpu-v4")
    times = {name: seconds(cost, chip, "float32", 0.4) for name, cost in make_costs(outputs=0).items()}
    assert [e.ratio for e in estimates(times, "look_layer_sam", 5, 1)] == pytest.approx([1, 2, 1.2])


# --- next to the paper -----------------------------------------------------------------------------------------


def test_the_papers_ratios():
    recipe = recipes.find("vit_b16-lamb-4096-look_layer_sam").recipe
    (row,) = notes.paper_times(recipe, ["base", "layer_sam", "look_layer_sam"])
    assert (row.batch_size, row.chips) == (4096, 128)
    assert row.hours == {"base": 4.8, "layer_sam": 8.4, "look_layer_sam": 5.6}
    assert {method: round(ratio, 2) for method, ratio in row.ratios.items()} == {
        **{"base": 1.0, "layer_sam": 1.75, "look_layer_sam": 1.17}
    }


def test_where_the_paper_has_no_base_a_smaller_batch_follows():
    rows = notes.paper_times(recipes.find(LARGE).recipe, ["base", "layer_sam", "look_layer_sam"])
    assert [(row.batch_size, row.chips, row.hours["base"]) for row in rows] == [(32768, 1024, None), (4096, 128, 4.8)]
    assert rows[0].ratios["layer_sam"] is None


def test_the_papers_vits_and_recipes_it_has_no_times_for():
    (row,) = notes.paper_times(recipes.find("vit_s16-look_sam-10").recipe, ["base", "sam", "look_sam"])
    assert row.chips is None
    assert row.hours == pytest.approx({"base": 24.1 / 12, "sam": 44.9 / 12, "look_sam": 27.6 / 12})  # 300 epochs
    assert notes.paper_times(recipes.find("digits").recipe, ["base"]) == []
    assert notes.paper_times(recipes.find("vit_b16-lamb-4096-look_sam").recipe, ["sam"]) == []


def test_what_explains_the_difference_is_reported_with_its_numbers():
    """LayerSAM = 2 gradients + rest = 1.75 leaves 25 % for the rest; then Look-LayerSAM-5 should be 1 + 0.75/5."""
    result = make_plan(recipes.find(LARGE).recipe)
    explained = " ".join(result["notes"])
    assert "The paper's 1.75 therefore means that 25% of its base step was no gradient" in explained
    assert "1 + 0.75/5 = 1.15; the paper has 1.17" in explained
    ours = 2 - result["methods"][1]["ratio"]
    assert f"the only such part is the reading and writing of the state, {ours:.1%}." in explained


def test_the_utilisation_the_papers_hours_come_to():
    rows = [notes.PaperTimes(4096, 128, {"base": 2.0})]
    (line,) = notes.implied_utilisation(rows, 0.25 * 2 * 3600 * 128 * 123e12)
    assert "2 hours of base on 128 TPU v3 chips (batch 4,096) are a utilisation of 0.25" in line


# --- the plan ---------------------------------------------------------------------------------------------------


def make_plan(recipe, costs=None, chip="tpu-v3", devices=8, **changes):
    options = {"devices": devices, "steps": 11_700, "backend": "cpu", "chip": find_chip(chip)}
    model = {"parameters": 86_567_656, "fit": Fit(5 * GIB, 16 * GIB)}
    return as_data(recipe, make_costs() if costs is None else costs, **model | options | changes)


def test_a_plan_is_plain_data_that_adds_up():
    result = json.loads(json.dumps(make_plan(recipes.find(LARGE).recipe)))
    assert result["version"] == 1
    refresh, look = result["programs"]["refresh"], result["methods"][2]
    assert refresh["collectives"] == {"all-reduce": {"runs": 2, "bytes": 800e6, "sent": 2 * 2 * 400e6 * 7 / 8}}
    assert refresh["sent_bytes"] == refresh["collectives"]["all-reduce"]["sent"]
    assert refresh["memory"]["total"] == 4 * GIB + GIB
    assert (result["chips"], look["programs"]) == (4, {"refresh": 0.2, "reuse": 0.8})
    assert look["hours"] == pytest.approx(look["seconds"] * 11_700 / 3600)
    assert look["chip_hours"] == pytest.approx(4 * look["hours"])


def test_the_table_shows_the_numbers():
    result = make_plan(recipes.find(LARGE).recipe)
    text = terminal.as_text(LARGE, result)
    refresh = next(line for line in text.splitlines() if line.startswith("refresh"))
    assert refresh.split()[:10] == ["refresh", "12", "T", "2", "all-reduce", "1.4", "GB", "5", "GiB", "4"]
    assert text.startswith(f"{LARGE}: vit_b16 with 86.6M parameters, lamb, batch 32,768, 11,700 steps")
    assert "8 devices, 4 chips TPU v3" in text and "Memory: 5 GiB of the 16 GiB that a device of TPU v3 has." in text
    look = next(line for line in text.splitlines() if line.startswith("Look-LayerSAM-5"))
    assert f" {result['methods'][2]['ratio']:.2f} " in look and "0.7 h" in look and "5.6 h, 1.17" in look
    assert max(map(len, text.splitlines())) <= 160
    assert all(f"- {note[:40]}" in text for note in result["notes"])


def test_caveats_appear_only_where_they_apply():
    recipe = recipes.find(LARGE).recipe
    calm = " ".join(make_plan(recipe, chip="tpu-v4")["notes"])
    for word in (
        "more than the",
        "not counted: ",
        "unknown length",
        "every branch",
        "bfloat16 in float32",
        "split over fsdp",
    ):
        assert word not in calm
    assert "16 devices are more than the 8 that A100" in notes_of(recipe, chip="a100", devices=16)
    assert "not counted: custom-call x" in notes_of(recipe, make_costs(uncounted=("custom-call x",)))
    flag = Collective("all-reduce", 1, 1, 8, None, ("while",), False, "flag")
    assert "loop of unknown length" in notes_of(recipe, make_costs(collectives=(flag,)))
    often = Collective("all-reduce", 4, 4, 8, 60, ("while",), False, "often")
    assert "60 collectives per step also wait" in notes_of(recipe, make_costs(collectives=(often,)))
    branch = Collective("all-reduce", 4096, 4096, 8, 1, (), True, "branch")
    assert "every branch of a conditional" in notes_of(recipe, make_costs(collectives=(branch,)))
    assert "split over fsdp: scalars and row sums, which are not counted" in notes_of(recipe.replace(mesh="fsdp=8"))
    assert "cpu back end computes bfloat16 in float32" in notes_of(recipe.replace(dtype="bfloat16"))


def test_a_late_rule_costs_the_share_of_steps_on_which_it_acts():
    recipe = recipes.find(LARGE).recipe.replace(start=0.8)
    whole, late = make_plan(recipe), make_plan(recipe, active=0.2)
    base, layer, look = late["methods"]
    assert (whole["active"], late["active"]) == (1.0, 0.2)
    assert look["programs"] == pytest.approx({"base": 0.8, "refresh": 0.04, "reuse": 0.16})
    times = {name: program["seconds"]["sequential"] for name, program in late["programs"].items()}
    seconds = 0.8 * times["base"] + 0.04 * times["refresh"] + 0.16 * times["reuse"]
    assert look["hours"] == pytest.approx(seconds * 11_700 / 3600)
    assert (base, layer) == tuple(whole["methods"][:2])  # the others act on all steps
    assert "With start=0.8, look_layer_sam acts on 20.0% of the steps; the others run the base program" in " ".join(
        late["notes"]
    )
    text = terminal.as_text(LARGE, late)
    line = next(line for line in text.splitlines() if line.startswith("Look-LayerSAM-5, 0.2 of the steps"))
    assert line.endswith("–") and "acts on" not in " ".join(whole["notes"])  # the paper's hours are not of this


class InThisThread:
    """In place of a pool of threads, whose threads do not see the JAX settings of a test."""

    def __init__(self, max_workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        value = function(*arguments)
        return types.SimpleNamespace(result=lambda: value)


@pytest.fixture
def in_this_thread(as_users_run_it, monkeypatch):
    monkeypatch.setattr(build.concurrent.futures, "ThreadPoolExecutor", InThisThread)


@pytest.mark.usefixtures("in_this_thread")
@pytest.mark.parametrize(
    ("settings", "copies", "gradients", "programs"),
    [
        ({"method": "msam"}, 1, 1, {"base", "refresh"}),
        ({"method": "gsam"}, 0, 2, {"base", "refresh"}),
        ({"method": "sam", "start": 6}, 0, 2, {"base", "refresh"}),
        ({"method": "look_sam", "start": 0.5}, 1, 2, {"base", "refresh", "reuse"}),
    ],
)
def test_memory_and_flops_of_the_programs_of_a_rule(settings, copies, gradients, programs):
    """MSAM keeps one copy of the parameters, its momentum, and takes one gradient."""
    recipe = Recipe(dataset="digits", batch_size=50, epochs=1, mesh="data=1", **settings)
    result = plan.make_plan(recipe, find_chip("a100"), 0.4, lambda line: None)
    assert result["programs"].keys() == programs
    base, refresh = (result["programs"][name] for name in ("base", "refresh"))
    parameters = 4 * (8_320 + 2 * 16_512 + 1_290)
    grown = refresh["memory"]["arguments"] - base["memory"]["arguments"]
    assert grown == pytest.approx(copies * parameters, abs=64)  # besides counts and norms
    assert refresh["flops"] == gradients * base["flops"]
    assert result["active"] == (0.5 if "start" in settings else 1.0)


@pytest.mark.usefixtures("in_this_thread")
def test_a_plan_of_the_first_steps_has_their_share():
    """A run of 12 steps that stops after 8, with a rule from step 6 on."""
    recipe = Recipe(dataset="digits", batch_size=50, epochs=1, mesh="data=1", method="sam", start=0.5, steps=8)
    result = plan.make_plan(recipe, find_chip("a100"), 0.4, lambda line: None)
    assert (result["steps"], result["active"]) == (8, 0.25)
    with pytest.raises(ValueError, match="start=12 is step 12 of a run of 12 steps"):
        plan.make_plan(recipe.replace(start=12), find_chip("a100"), 0.4, lambda line: None)
    with pytest.raises(ValueError, match="perturb='x' matches none of the parameters"):
        plan.make_plan(recipe.replace(perturb="x"), find_chip("a100"), 0.4, lambda line: None)


def notes_of(recipe, costs=None, **options):
    return " ".join(make_plan(recipe, costs, **options)["notes"])


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("settings", "ratio"),
    [
        ({"method": "asam"}, 2.0),
        ({"method": "gsam"}, 2.0),
        ({"method": "msam"}, 1.0),
        ({"method": "msam", "start": 0.5}, 1.0),
        ({"method": "sam", "start": 0.75}, 1.25),
        ({"method": "look_sam", "k": 5, "start": 0.75}, 1.05),
        ({"method": "look_sam", "k": 5, "start": 18, "stop": 54}, 1.1),  # of 72 steps
    ],
)
def test_relative_flops_of_a_rule_that_acts_on_some_steps(settings, ratio):
    recipe = Recipe(dataset="digits", batch_size=50, epochs=6, mesh="data=1", **settings)
    assert relative_flops(recipe) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.usefixtures("as_users_run_it")
def test_relative_flops_are_gradients_per_step():
    recipe = Recipe(dataset="digits", model="mlp", mesh="data=1", batch_size=32, epochs=1)
    for method, k, expected in (
        ("base", 5, 1),
        ("sam", 5, 2),
        ("look_sam", 5, 1.2),
        ("look_sam", 1, 2),
        ("sam_k", 4, 1.25),
    ):
        assert relative_flops(recipe.replace(method=method, k=k)) == pytest.approx(expected, rel=1e-12)


# --- memory -----------------------------------------------------------------------------------------------------


def memory_of(images, at_once, state=2 * GIB):
    """State, batch and activations: 1 MiB per image held, 30 per image processed at a time, and 0.5 GiB."""
    temporary = GIB // 2 + at_once * 30 * 2**20
    return Memory(arguments=state + images * 2**20, outputs=state, aliased=state, temporary=temporary)


def test_memory_between_two_programs_is_linear():
    model = MemoryModel.between(memory_of(2, 2), memory_of(4096, 512), (4096, 512), fsdp=1)
    assert model.total(1024, 128, fsdp=1) == pytest.approx(memory_of(1024, 128).total)
    assert model.total(1024, 128, fsdp=4) == pytest.approx(memory_of(1024, 128, state=GIB // 2).total)
    summed = dataclasses.replace(model, gradient=2**20)
    assert [summed.total(8, part, 1) - model.total(8, part, 1) for part in (4, 8)] == [2**20, 0]
    sharded = MemoryModel.between(memory_of(2, 2, GIB // 2), memory_of(64, 64, GIB // 2), (64, 64), fsdp=4)
    assert sharded.total(8, 8, fsdp=1) == pytest.approx(memory_of(8, 8).total)


@pytest.mark.parametrize(
    ("settings", "chip", "flags"),
    [
        ({}, "tpu-v3", ["--mesh data=4 --microbatch 512", "--mesh data=128"]),
        ({"mesh": "data=8"}, "a100", ["--mesh data=8 --microbatch 16384", "--mesh data=16"]),
        ({"mesh": "data=8,fsdp=2"}, "tpu-v3", ["--mesh data=8,fsdp=2 --microbatch 4096", "--mesh data=64,fsdp=2"]),
    ],
)
def test_what_would_fit(settings, chip, flags):
    """The fewest devices, which take micro-batches, and the fewest that need none; a tenth of the memory is left."""
    recipe = recipes.find(LARGE).recipe.replace(**settings)
    model = MemoryModel.between(memory_of(2, 2), memory_of(4096, 512), (4096, 512), fsdp=1)
    found = suggestions(recipe, model, find_chip(chip))
    assert [suggestion.flags for suggestion in found] == flags
    available = 0.9 * find_chip(chip).memory / find_chip(chip).devices
    assert all(suggestion.memory <= available for suggestion in found)


def test_a_state_that_is_too_large_is_sharded_and_a_model_that_is_too_large_has_no_mesh():
    recipe, large = recipes.find(LARGE).recipe, memory_of(4096, 512, state=40 * GIB)
    model = MemoryModel.between(memory_of(2, 2, state=40 * GIB), large, (4096, 512), fsdp=1)
    first, last = suggestions(recipe, model, find_chip("tpu-v3"))
    assert "fsdp=" in first.flags and "fsdp=" in last.flags and last.devices > first.devices
    assert suggestions(recipe, MemoryModel(GIB, 40 * GIB, 0, 0), find_chip("tpu-v3")) == ()


def test_a_plan_that_does_not_fit_says_what_would():
    recipe = recipes.find(LARGE).recipe
    fit = Fit(988 * GIB, 16 * GIB, (Suggestion("--mesh data=1 --microbatch 256", 1, 0.5, 14 * GIB),))
    text = terminal.as_text(LARGE, make_plan(recipe, fit=fit))
    assert "Memory: 988 GiB do not fit in the 16 GiB that a device of TPU v3 has. These would" in text
    assert re.search(r"^  --mesh data=1 --microbatch 256 +14 GiB +1 device, 0.5 chips$", text, re.MULTILINE)
    none = terminal.as_text(LARGE, make_plan(recipe, fit=Fit(988 * GIB, 16 * GIB)))
    assert "No mesh of this chip does: pass a chip with more memory" in none


@pytest.mark.usefixtures("in_this_thread")
def test_the_programs_that_are_suggested_do_fit():
    """On a chip so small that the batch does not fit: compiled as suggested, it does."""
    recipe = Recipe(dataset="digits", batch_size=400, epochs=1, mesh="data=1", method="look_sam")
    chip = dataclasses.replace(find_chip("a100"), memory=2**20 * 1.75)
    result = plan.make_plan(recipe, chip, 0.4, lambda line: None)
    assert result["parameters"] == 42_634 and not result["memory"]["fits"]
    found = result["memory"]["suggestions"][0]
    microbatch = int(re.fullmatch(r"--mesh data=1 --microbatch (\d+)", found["flags"])[1])
    fitting = plan.make_plan(recipe.replace(microbatch=microbatch), chip, 0.4, lambda line: None)["memory"]
    assert fitting["fits"] and fitting["needed"] == pytest.approx(found["memory"], rel=0.3)


# --- the environment --------------------------------------------------------------------------------------------


def test_devices_are_asked_for_and_what_the_user_has_set_stays():
    environ = {"XLA_FLAGS": "--xla_dump_to=x"}
    chips.use_virtual_devices(1024, environ)
    assert environ["XLA_FLAGS"].split() == ["--xla_dump_to=x", "--xla_force_host_platform_device_count=1024"]
    assert environ["JAX_PLATFORMS"] == "cpu"
    ours = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "tpu"}
    environ = dict(ours)
    chips.use_virtual_devices(8, environ)
    assert environ == ours
    with pytest.raises(ValueError, match="the mesh has 8 devices, and JAX has started with 4; leave"):
        chips.check_devices(8, 4)
    chips.check_devices(8, 8)


# --- the command ------------------------------------------------------------------------------------------------


def mlp_flops(images, *widths):
    """Forward and backward: three products per layer, and two in the first, whose input needs no gradient."""
    products = [2 * images * n_in * n_out for n_in, n_out in itertools.pairwise(widths)]
    return 3 * sum(products) - products[0]


PROGRAM = """if True:
    import sys
    from looksam.cli import main
    assert main(["plan", "--help"]) == 0 and "jax" not in sys.modules
    sys.exit(main(["plan", *sys.argv[1:]]))
"""


def run_plan(*arguments):
    """In a process of its own, as a user runs it: it asks for its devices before JAX starts, and not for its help."""
    environ = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_plan_of_the_real_programs_has_the_flops_and_reductions_of_its_formula():
    """On twelve devices in two micro-batches: each device has 8 of the 96 images, and reduces after the loop."""
    done = run_plan("digits", "--mesh=data=12", "--batch-size=96", "--microbatch=48", "--k=3", "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"compiled (\w+) in", done.stderr)) == ["base", "refresh", "reuse"]
    result = json.loads(done.stdout.splitlines()[-1])
    gradient, parameters = mlp_flops(8, 64, 128, 128, 128, 10), 64 * 128 + 2 * 128 * 128 + 128 * 10 + 3 * 128 + 10
    for name, gradients in (("base", 1), ("refresh", 2), ("reuse", 1)):
        program = result["programs"][name]
        assert program["flops"] == gradients * gradient
        assert list(program["collectives"]) == ["all-reduce"] and not program["uncounted"]
        reduced = program["collectives"]["all-reduce"]
        assert reduced["runs"] == gradients
        assert 0 <= reduced["bytes"] - gradients * 4 * parameters < 100  # the loss and the like go with it
        assert reduced["sent"] == pytest.approx(2 * reduced["bytes"] * 11 / 12)
        state = 2 + (name != "base")  # parameters, momentum, and g_v
        assert 0 <= program["memory"]["outputs"] - state * 4 * parameters < 2000
    assert (result["devices"], result["backend"], result["steps"]) == (12, "cpu", 100 * (600 // 96))
    assert [method["method"] for method in result["methods"]] == ["base", "sam", "look_sam"]
    assert result["methods"][2]["programs"] == pytest.approx({"refresh": 1 / 3, "reuse": 2 / 3})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["digits", "--chip", "tpu"], 2, "chip 'tpu' is unknown"),
        (["digits", "--utilisation", "0"], 2, "--utilisation 0.0 is out of range; pass 0 < --utilisation <= 1"),
        (["digits", "--mesh", "data=3", "--batch-size", "50"], 1, "--batch-size 50 is not a multiple of the 3 devices"),
        (["digits", "--mesh", "data=16"], 1, "the mesh has 16 devices, and JAX has started with 8"),
        (["imagenette-vit-s32", "--mesh", "data=1"], 1, "the size of this dataset is read from its files"),
    ],
)
def test_what_cannot_be_planned_raises_before_time_is_spent(arguments, code, message, capsys):
    assert main(["plan", *arguments]) == code
    assert message in capsys.readouterr().err
