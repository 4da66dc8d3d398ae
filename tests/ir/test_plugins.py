"""Entry points of installed packages are listed without an import and loaded once, and their errors name the
package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed_packages import Install, installing
from tilewright.errors import CompileError
from tilewright.ir.plugins import load_plugins, plugins


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
    assert load_plugins("tilewright.things") == {"toy": value}
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
        load_plugins("tilewright.things")


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    install("first", "toy_plugin_c", "VALUE = 1\n", "[tilewright.things]\nsame = toy_plugin_c:VALUE\n")
    install("second", "toy_plugin_d", "VALUE = 2\n", "[tilewright.things]\nsame = toy_plugin_d:VALUE\n")
    with pytest.raises(CompileError, match=r"packages (first|second) 1\.2 and (first|second) 1\.2 both"):
        plugins("tilewright.things")
