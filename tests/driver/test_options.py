"""Wrong options and arguments and missing packages raise errors that name the mistake and say what to do, and
are not reported as bugs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_cli import run

import tilewright as tw
from tilewright.driver.options import pass_names
from tilewright.errors import CompileError, InternalError, TilewrightError
from tilewright.tools.model_support import examine

X = np.ones(4, np.float32)


def doubled(x: Any) -> Any:
    return x * 2


def compiled(**options: Any) -> Any:
    return tw.compile(doubled, **{"args": (X,), "cache": False, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "2"}, "threads='2': give a whole number above 0, or None for all cores"),
        ({"threads": 0}, "threads=0: give"),
        ({"threads": 1.5}, "threads=1.5: give"),
        ({"threads": True}, "threads=True: give"),
        (
            {"disable": ["nonsense"]},
            "disable: there is no pass 'nonsense'; the passes are drop-derivative-marks, cse, ",
        ),
        ({"disable": ["simplfy"]}, "there is no pass 'simplfy'; did you mean 'simplify'"),
        ({"disable": "fold_constants"}, "there is no pass 'fold_constants'; did you mean 'fold-constants'"),
        ({"disable": ["form-groups"]}, "the pass 'form-groups' is required"),
        ({"args": "x"}, "args is of type str: give a tuple"),
        ({"kwargs": [X]}, "kwargs is of type list: give a dictionary"),
        ({"dims": "batch"}, "dims is of type str, not a dictionary: write dims="),
        ({"dims": {"x": "batch"}}, r"dims\['x'\] is of type str, not a dictionary by axis: write dims="),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compiled(**options)


def test_options_that_are_right() -> None:
    assert pass_names("simplify") == {"simplify"}
    library = compiled(disable=["write-in-place", "pack-operands", "flatten-indices"], threads=np.int64(1))
    np.testing.assert_array_equal(library(X), 2 * X)
    assert "pack-operands" in library.report.left_out


@pytest.mark.parametrize("level", ["tensor", "loop"])
def test_printed_modules_lack_the_effect_of_disabled_passes(level: str) -> None:
    def product(x: Any, b: Any) -> Any:
        return x @ b.T

    def printed(**options: Any) -> str:
        args = (np.ones((64, 96), np.float32), np.ones((128, 96), np.float32))
        return str(tw.compile(product, args, cache=False, **options).ir(level))

    assert "pack" in printed()
    assert "pack" not in printed(disable=["pack-operands"])


def test_a_file_where_a_folder_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="dump: .*file is a file; give a folder"):
        compiled(dump=tmp_path / "file")
    with pytest.raises(CompileError, match="dump: .*cannot be made"):
        compiled(dump=tmp_path / "file" / "below")
    compiled(dump=tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").glob("*.tw"))


def test_threads_of_a_loaded_library(tmp_path: Path) -> None:
    path = compiled().save(tmp_path / "m.so")
    with pytest.raises(TilewrightError, match="threads='2': give a whole number"):
        tw.load(path, threads="2")  # type: ignore[arg-type]


@pytest.mark.parametrize(("package", "name"), [("onnx", "m.onnx"), ("torch", "m.pt2")])
def test_a_missing_package(
    package: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in list(sys.modules):
        if module.partition(".")[0] == package or module.startswith("tilewright.frontends."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    model = tmp_path / name
    model.write_bytes(b"module {}")
    advice = rf"the package {package}, for .* is not installed: pip install 'tilewright\[{package}\]'"
    with pytest.raises(CompileError, match=advice) as found:
        tw.compile(model, cache=False)
    assert not isinstance(found.value, InternalError)
    assert "pip install" in str(examine(model).error)
    for command in ("compile", "doctor", "inspect"):
        output = ("-o", str(tmp_path / "m.so")) if command == "compile" else ()
        assert run(command, str(model), *output) == 1
        said = "".join(capsys.readouterr())
        assert "pip install" in said and "a bug in Tilewright" not in said


def test_another_missing_module_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: Any) -> Any:
        import a_module_that_is_nowhere  # type: ignore[import-not-found]

        return a_module_that_is_nowhere

    with pytest.raises(TilewrightError, match="a_module_that_is_nowhere"):
        tw.compile(broken, (X,), cache=False)
