"""Entry points of installed packages are listed without an import, loaded once and called once; their errors
name the package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed_packages import Install, installing
from tilewright.errors import CompileError
from tilewright.ir.plugins import call_plugins, plugins


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    with installing(tmp_path) as install:
        yield install


def test_a_plugin_is_listed_without_an_import_and_loaded_once(install: Install) -> None:
    install(
        "toy-plugin", "toy_plugin_a", "VALUE = object()\n", "[tilewright.things]\ntoy = toy_plugin_a:VALUE\n"
    )
    plugin = plugins("tilewright.things")["toy"]
    assert plugin.package == "toy-plugin 1.2"
    assert "toy_plugin_a" not in sys.modules
    value = plugin.load()
    assert sys.modules["toy_plugin_a"].VALUE is value
    del sys.modules["toy_plugin_a"]
    assert plugin.load() is plugins("tilewright.things")["toy"].load() is value
    assert plugins("tilewright.nothing") == {}


def test_a_broken_package_is_named(install: Install) -> None:
    install(
        "broken",
        "toy_plugin_b",
        "raise KeyError('no GPU')\n",
        "[tilewright.things]\nb = toy_plugin_b:VALUE\n",
    )
    assert set(plugins("tilewright.things")) == {"b"}
    with pytest.raises(CompileError, match=r"package broken 1\.2, entry point 'b'.*KeyError: 'no GPU'"):
        plugins("tilewright.things")["b"].load()


COUNTING = """
import tilewright.ir.plugins as plugins

CALLS = []

def register():
    CALLS.append(None)
    plugins.call_plugins("tilewright.counted", "things", "add_thing")
    if len(CALLS) == 1:
        raise KeyError("not yet")
"""


def test_a_function_is_called_until_it_succeeds_and_then_never_again(install: Install) -> None:
    install("counting", "toy_plugin_e", COUNTING, "[tilewright.counted]\nc = toy_plugin_e:register\n")
    with pytest.raises(
        CompileError, match=r"package counting 1\.2.*registering its things failed \(KeyError: 'not yet'\)"
    ):
        call_plugins("tilewright.counted", "things", "add_thing")
    for _ in range(2):
        call_plugins("tilewright.counted", "things", "add_thing")
    assert len(sys.modules["toy_plugin_e"].CALLS) == 2


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("first", "toy_plugin_c", "VALUE = 1\n", "[tilewright.things]\nsame = toy_plugin_c:VALUE\n")
    install("second", "toy_plugin_d", "VALUE = 2\n", "[tilewright.things]\nsame = toy_plugin_d:VALUE\n")
    with pytest.raises(CompileError, match=r"packages (first|second) 1\.2 and (first|second) 1\.2 both"):
        plugins("tilewright.things")
