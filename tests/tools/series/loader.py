# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""An upstream method with a statement of every kind, and edit blocks for it."""

import textwrap

from tests.tools.series.merging import faults, merged

LOADER = """\
class Loader:
    def load(self, path):
        # Opens the file.
        file = open(path)  # to be closed

        if self.strict:
            check(file)
            return file
        else:
            # Nothing to check.
            warn(path, "not checked")
        for part in file:
            if part:
                self.parts.append(part)
                continue
            del part
        try:
            file.close()
        except OSError as error:
            warn(path, "not closed")
            raise
        finally:
            self.done = True
        return None
"""


def _delta(*blocks: str) -> str:
    body = textwrap.indent("\n".join(map(textwrap.dedent, blocks)), " " * 8)
    return (
        "from series import after, before, removed, replacing\n\n"
        f"class Loader:\n    def load(self, path):\n{body}\n"
    )


def merged_loader(*blocks: str) -> str:
    """The loader with its method edited by blocks."""
    used = [name for name in ("after", "before", "replacing") if name in str(blocks)]
    delta = _delta(*blocks).replace(
        "after, before, removed, replacing", ", ".join(used)
    )
    return merged(LOADER, delta)


def loader_fault(*blocks: str) -> str:
    """The one fault of the blocks."""
    found = faults(LOADER, _delta(*blocks))
    (line,) = [line for line in found if not line.startswith("imports the marker")]
    return line
