# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share."""
import os

SOURCE = os.environ.get("ATTNHOST_TEST_SRCDIR",
                        os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
FIXTURES = os.environ.get("ATTNHOST_TEST_FIXTURE_DIR", "")


class Skip(Exception):
    """This test cannot be run here; why."""


def cases(*arguments):
    """Run the test once for each of these tuples of arguments."""
    def mark(function):
        function.cases = arguments
        return function
    return mark


def refused(kind, words, function, *arguments, **keywords):
    """The call raises `kind` with all these words in its message. Returns the exception."""
    try:
        function(*arguments, **keywords)
    except kind as error:
        said = str(error)
        missing = [word for word in words if word not in said]
        assert not missing, f"{missing} not in: {said}"
        return error
    raise AssertionError(f"not refused; expected {kind.__name__} with {words}")
