# SPDX-License-Identifier: Apache-2.0
"""mini-sglang's server, with the backend `attnhost`. Its processes are spawned and import this module, too."""
import attnhost_minisgl  # noqa: F401  registers

if __name__ == "__main__":
    from minisgl.server import launch_server
    launch_server()
