"""What people call the rows."""

OPTIMIZERS = {"sgdm": "SGD-M", "adamw": "AdamW", "lamb": "LAMB"}
NAMES = {"sam": "SAM", "layer_sam": "LayerSAM", "look_layer_sam": "Look-LayerSAM"}


def display(row: str, optimizer: str = "") -> str:
    """A row's name: base is the optimizer's; sam_5 is SAM-5; look_layer_sam:literal is Look-LayerSAM, literal."""
    name, _, scaling = row.partition(":")
    if name == "base":
        return OPTIMIZERS[optimizer] if optimizer else "base"
    if name in NAMES:
        return NAMES[name] + (f", {scaling}" if scaling else "")
    stem, _, k = name.rpartition("_")
    return f"{'LookSAM' if stem == 'look_sam' else 'SAM'}-{k}"


def style(row: str) -> str:
    """The method whose colour and marker a row has."""
    name = row.partition(":")[0]
    return name if name in ("base", *NAMES) else "look_sam" if name.startswith("look") else "sam_k"
