# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Checks that Python files start with vLLM's two SPDX lines.

Exit status 1 names every file that does not.
"""

import sys
from pathlib import Path

HEADER = (
    "# SPDX-License-Identifier: Apache-2.0\n"
    "# SPDX-FileCopyrightText: Copyright contributors to the vLLM project\n"
)


def main(paths: list[str]) -> int:
    """Checks the files.

    Args:
        paths: Python files; empty ones need no header.
    """
    wrong = [
        path
        for path in paths
        if (text := Path(path).read_text()) and not text.startswith(HEADER)
    ]
    for path in wrong:
        print(f"{path}: does not start with the two SPDX lines; expected\n{HEADER}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
