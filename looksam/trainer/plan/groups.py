"""How many devices take part in one collective: ``replica_groups``, in each of the forms the compiler prints."""

import math
import re

_AXIS = re.compile(r"'([^']+)'=(\d+)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def group_size(text: str | None, devices: int) -> int:
    """Devices in each group. No groups, or one empty list of them: all devices are one group.

    Example:
      >>> [group_size(text, 8) for text in ("{{0,1},{2,3}}", "[4,2]<=[8]", "mesh['a'=2,'b'=4] {'b'}", "{}", None)]
      [2, 2, 4, 8, 8]
    """
    if text is None or text.strip() in ("", "{}", "{{}}"):
        return devices
    if text.startswith("{"):
        return _listed(text)
    if found := re.match(r"\[\d+,(\d+)\]<=\[", text):  # number of groups, size of each, and the devices' order
        return int(found[1])
    if text.startswith("mesh["):
        return _of_mesh(text)
    raise ValueError(f"replica_groups={text} is in a form that is not known.")


def _listed(text: str) -> int:
    sizes = {group.count(",") + 1 for group in re.findall(r"\{([\d,]+)\}", text)}
    if len(sizes) != 1:
        raise ValueError(f"replica_groups={text} are not of one size.")
    return sizes.pop()


def _of_mesh(text: str) -> int:
    """``mesh['a'=2,'b'=4] {'b'}``: the devices along axis b. ``'b':(2)2`` is a part of an axis, of the last number."""
    mesh, _, used = text.partition("]")
    lengths = {name: int(length) for name, length in _AXIS.findall(mesh)}
    axes = _USED.findall(used)
    if not axes or any(name not in lengths for name, _, _ in axes):
        raise ValueError(f"replica_groups={text} is in a form that is not known.")
    return math.prod(int(part) if part else lengths[name] for name, _, part in axes)
