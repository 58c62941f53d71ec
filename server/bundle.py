"""What the bundle for desktop hosts starts: `ava serve`, whichever way a host runs this file.

It stands beside the package, so that a host that runs it by its path puts no module of the package on the path.
"""

from __future__ import annotations

import sys

from ava_server.__main__ import main

if __name__ == "__main__":
    sys.argv[1:] = ["serve"]
    main()
