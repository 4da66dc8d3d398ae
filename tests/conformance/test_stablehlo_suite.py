"""How StableHLO's test files are read and judged, on a file in their form; `python -m
tests.conformance.stablehlo_suite` runs the whole suite.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jaxlib")

from .coverage import PAGE, filled, page
from .stablehlo_cases import Case, cases_of
from .stablehlo_suite import DATA, run

TEXT = """
func.func @sum_of_constants() {
  %a = stablehlo.constant dense<[1.0, 2.5]> : tensor<2xbf16>
  %b = stablehlo.add %a, %a : tensor<2xbf16>
  check.expect_eq_const %b, dense<[2.0, 5.0]> : tensor<2xbf16>
  func.return
}
func.func @too_far() {
  %a = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %b = stablehlo.exponential %a : tensor<2xf32>
  check.expect_almost_eq_const %b, dense<[2.7182818, 7.5]> : tensor<2xf32>
  func.return
}
func.func @sizes_stay_constant() {
  %a = stablehlo.constant dense<(1.0, -2.0)> : tensor<complex<f32>>
  %s = stablehlo.constant dense<[2]> : tensor<1xi64>
  %b = stablehlo.dynamic_broadcast_in_dim %a, %s, dims = [] : (tensor<complex<f32>>, tensor<1xi64>) ->
      tensor<2xcomplex<f32>>
  %w = stablehlo.constant dense<[(1.0, -2.0), (1.0000001, -2.0)]> : tensor<2xcomplex<f32>>
  check.expect_close %b, %w, max_ulp_difference = 1 : tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>
  func.return
}

// -----
func.func @unknown() {
  %a = "nowhere.to"() : () -> tensor<2xf32>
  func.return
}

// -----
module {
  func.func public @main() -> tensor<3xi32> {
    %0:2 = call @inputs() : () -> (tensor<3xi32>, tensor<i32>)
    %1 = call @expected() : () -> tensor<3xi32>
    %2 = stablehlo.broadcast_in_dim %0#1, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %3 = stablehlo.subtract %0#0, %2 : tensor<3xi32>
    stablehlo.custom_call @check.expect_eq(%3, %1) {has_side_effect = true} : (tensor<3xi32>, tensor<3xi32>)
        -> ()
    return %3 : tensor<3xi32>
  }
  func.func private @inputs() -> (tensor<3xi32>, tensor<i32>) {
    %0 = stablehlo.constant dense<[4, 5, 6]> : tensor<3xi32>
    %1 = stablehlo.constant dense<3> : tensor<i32>
    return %0, %1 : tensor<3xi32>, tensor<i32>
  }
  func.func private @expected() -> tensor<3xi32> {
    %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
    return %0 : tensor<3xi32>
  }
}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "own.mlir"
    path.write_text(TEXT)
    return path


def test_constants_become_inputs(path: Path) -> None:
    inputs = {case.name: len(case.inputs) for case in cases_of(path, "own") if isinstance(case, Case)}
    assert inputs == {
        "own:sum_of_constants": 1,
        "own:too_far": 1,
        "own:sizes_stay_constant": 1,
        "own:main": 2,
    }


@pytest.mark.parametrize("native", [False, True])
def test_outcomes(path: Path, native: bool) -> None:
    found = dict(run(path, "own", native))
    assert found.pop("own:too_far").startswith("wrong: differs by")
    assert found.pop("own:1").startswith("refused")
    assert found == {"own:sum_of_constants": "pass", "own:sizes_stay_constant": "pass", "own:main": "pass"}


def test_nothing_is_wrong() -> None:
    found = json.loads(DATA.read_text())["not_passed"]
    assert [name for name, outcome in found.items() if not outcome.startswith("refused")] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == filled(page())
