"""Sections for the tests of reports: awkward on purpose, with numbers that nobody measured."""

import math

from looksam.experiments.report.document import Figure, Heatmap, Section, Series, Table, Value

AWKWARD = """Is a < b & "c" > 'd'? </script><script>window.broken = true</script>"""


def accuracy_table():
    return Table(
        "CIFAR-100, small ResNet",
        ("method", "accuracy, %", "paper, %", "relative step time", "verdict"),
        [
            ("base", Value(71.02, 0.21), Value(78.9, digits=1), Value(1.0, unit="×"), "–"),
            ("SAM", Value(73.481, 0.18), Value(80.7, digits=1), Value(1.93, unit="×"), "better than base"),
            ("SAM-5", Value(71.9, 0.3), None, Value(1.21, unit="×"), "no difference shown"),
            ("LookSAM-5", Value(73.2, 0.25), Value(80.6, digits=1), Value(1.24, unit="×"), "better than base"),
            ("Look-LayerSAM-5", None, None, Value(10.5, unit="×"), "not run | no layers"),
        ],
    )


def tradeoff():
    ks = [1, 2, 3, 5, 10, 20]
    return Figure(
        "tradeoff-accuracy",
        "Accuracy as k grows",
        "k",
        "test accuracy, %",
        [
            Series("LookSAM-k", ks, [73.4, 73.5, 73.3, 73.2, 72.6, 72.0], [0.2, 0.2, 0.15, 0.25, 0.3, 0.3], "look_sam"),
            Series("SAM-k", ks, [73.4, 72.9, 72.4, 71.9, 71.5, 71.2], [0.2, 0.25, 0.2, 0.3, 0.2, 0.3], "sam_k"),
            Series("base", [1, 20], [71.0, 71.0], None, "base"),
            Series("LookSAM-k, paper", ks, [74.0, 73.9, 73.9, 73.6, 73.1, 72.9], None, "paper"),
        ],
        log_x=True,
    )


def curves():
    """12 series of 60 points with errors, on a logarithmic y-axis."""
    epochs = list(range(1, 61))
    series = []
    for number in range(12):
        loss = [3 * math.exp(-epoch / (8 + 2 * number)) + 0.02 * (number + 1) for epoch in epochs]
        series.append(Series(f"ρ = {0.1 * (number + 1):.1f}", epochs, loss, [0.08 * y for y in loss], number))
    return Figure("rho-curves", "Training loss over epochs", "epoch", "training loss", series, log_y=True)


def drift():
    """Long noisy lines, with a value that is not a number."""
    steps = list(range(5000))
    high = [1.5 + 0.4 * math.sin(step / 3) + 0.2 * math.sin(step / 211) for step in steps]
    slow = [0.4 + 0.1 * math.sin(step / 5) * math.cos(step / 97) for step in steps]
    high[17] = math.nan
    return Figure(
        "drift",
        "Change of the gradient over five steps",
        "step",
        "relative change",
        [Series("g_s", steps, high, style="sam"), Series("g_v", steps, slow, style="look_sam")],
    )


def cloud():
    return Figure(
        "cost",
        "Accuracy against cost",
        "time per step, relative to base",
        "test accuracy, %",
        [
            Series("base", [1.0], [71.02], [0.21], "base", line=False),
            Series("SAM", [1.93], [73.48], [0.18], "sam", line=False),
            Series("LookSAM-5", [1.24], [73.2], [0.25], "look_sam", line=False),
        ],
    )


def landscape():
    side = [round(-1 + 0.1 * i, 1) for i in range(21)]
    values = [[0.02 + x * x + 3 * y * y + x * y * y for x in side] for y in side]
    values[0][0] = math.nan
    labels = ("direction 1", "direction 2")
    return Heatmap("landscape", "Training loss around the end", *labels, side, side, values, "training loss", log=True)


def sections():
    source = {"scale": "small", "seeds": 5, "commit": "0123abc", "versions": {"jax": "0.10.2", "optax": "0.2.8"}}
    return [
        Section(
            "cifar100",
            "CIFAR-100: accuracy",
            "Does LookSAM-k keep SAM's accuracy, and beat SAM-k?",
            [
                "LookSAM-5 keeps 89 % of SAM's gain over the base optimizer, at 1.24 times its time.",
                "SAM-5 gains less, and no difference to base is shown at five seeds.",
            ],
            [accuracy_table()],
            [tradeoff(), cloud()],
            ["Ours is a small ResNet, trained for 30 epochs; the paper's is ResNet-18, for 200."],
            source,
        ),
        Section(
            "drift",
            "Which part of the gradient is slow",
            "Is g_v the slow component?",
            ["g_v changes least over five steps."],
            figures=[drift(), landscape()],
            source=source,
        ),
        Section(
            "awkward",
            AWKWARD,
            AWKWARD,
            [AWKWARD],
            [Table(AWKWARD, ("name", AWKWARD), [(AWKWARD, Value(-3.0)), ("a|b", Value(12.0)), ("none", None)])],
            [curves()],
            [AWKWARD],
            {AWKWARD: AWKWARD},
        ),
    ]
