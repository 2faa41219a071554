"""Datasets of small random pictures, written as Parquet files or class folders."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

RNG = np.random.default_rng(0)


def pixels(count: int, size: int = 4) -> np.ndarray:
    return RNG.integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def encoded(image: np.ndarray | Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(path: Path, images: list[bytes | None], labels: list, names: list[str] | None = None, **more) -> None:
    structs = [{"bytes": data, "path": None} for data in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(structs, kind), "label": labels, **more})
    if names:
        features = '{"info": {"features": {"label": {"names": ["' + '", "'.join(names) + '"]}}}}'
        table = table.replace_schema_metadata({"huggingface": features})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


def write_class_folders(root: Path, images: np.ndarray, split: str, names: tuple[str, ...] = ("b", "a")) -> None:
    """Writes image i into the folder of name i, beginning again after the last name."""
    for i, image in enumerate(images):
        folder = root / split / names[i % len(names)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.{('PNG', 'png')[i % 2]}").write_bytes(encoded(image))
