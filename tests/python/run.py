# SPDX-License-Identifier: Apache-2.0
"""run.py FIRST_NUMBER MODULE...: run every function test_* of these modules, and print TAP.

A function may carry `cases`, a list of tuples of arguments (@cases(...)): each is a test. What
raises Skip is skipped with that reason. The last line is "# last NUMBER FAILED".
"""
import importlib
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def tests(module):
    for name, function in list(vars(module).items()):
        if name.startswith("test_"):
            for arguments in getattr(function, "cases", [()]):
                shown = " ".join(str(a) for a in arguments if isinstance(a, (str, int)) and "\n" not in str(a))
                yield f"{module.__name__}: {name[5:].replace('_', ' ')} {shown}".strip(), function, \
                    arguments


def run(function, arguments):
    """"", "SKIP reason" or what went wrong."""
    from harness import Skip
    try:
        function(*arguments)
        return ""
    except Skip as reason:
        return f"SKIP {reason}"
    except BaseException:  # pylint: disable=broad-except
        return traceback.format_exc()


def main():
    number, failed = int(sys.argv[1]), 0
    wanted = os.environ.get("ATTNHOST_TEST_ONLY", "")
    for name in sys.argv[2:]:
        for test, function, arguments in tests(importlib.import_module(name)):
            if wanted not in test:
                continue
            number, start = number + 1, time.process_time()
            said = run(function, arguments)
            if said and not said.startswith("SKIP"):
                failed += 1
                print(f"not ok {number} - {test}")
                print("\n".join("# " + line for line in said.splitlines()))
            else:
                print(f"ok {number} - {test}" + (f" # {said}" if said else ""))
            if os.environ.get("ATTNHOST_TEST_TIMES"):
                print(f"# {time.process_time() - start:.2f} s of processor time")
            sys.stdout.flush()
    print(f"# last {number} {failed}")


if __name__ == "__main__":
    main()
