#include "tools/run_page/report_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/runtime/medians.h"
#include "tools/run_page/kept_points.h"

namespace weft {

Json drawn_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

Json exact_number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

std::size_t highest_of(const StepColumn& column) {
  const auto below = [](double one, double other) { return std::isfinite(other) && !(one >= other); };
  return static_cast<std::size_t>(std::ranges::max_element(column.values, below) - column.values.begin());
}

Json axes_json(const StepTable& table, const std::vector<std::size_t>& rows) {
  Json json = {{"step", Json::array()}, {"tokens", Json::array()}, {"seconds", Json::array()}};
  for (const std::size_t row : rows) {
    json["step"].push_back(table.steps[row]);
    json["tokens"].push_back(std::llround(table.tokens[row]));
    json["seconds"].push_back(drawn_number(table.seconds[row]));
  }
  return json;
}

namespace {

// The fields that are drawn as curves, where a run has them.
constexpr const char* curve_fields[] = {"loss", "validation.loss", "tokens_per_second", "tflops",
                                        "mfu",  "data_seconds",    "grad_norm",         "lr"};

Json curve_json(const StepTable& table, const StepColumn& column) {
  std::vector<std::size_t> rows;
  Json values = Json::array();
  for (const std::size_t index : kept_points(column.values)) {
    rows.push_back(column.rows[index]);
    values.push_back(drawn_number(column.values[index]));
  }
  Json json = axes_json(table, rows);
  json["value"] = std::move(values);
  return json;
}

}  // namespace

Json curves_json(const StepTable& table) {
  Json curves = Json::object();
  for (const char* field : curve_fields) {
    if (const StepColumn* column = table.find(field)) curves[field] = curve_json(table, *column);
  }
  for (const auto& [field, column] : table.columns) {
    if (field.starts_with(predictor_column)) curves[field] = curve_json(table, column);
  }
  return curves;
}

namespace {

// The row of the least finite value, and that value; NaN if there is none.
std::pair<std::size_t, double> least_of(const StepColumn* column) {
  std::pair<std::size_t, double> least = {0, std::numeric_limits<double>::quiet_NaN()};
  for (std::size_t i = 0; column && i < column->values.size(); ++i) {
    const double value = column->values[i];
    if (std::isfinite(value) && !(value >= least.second)) least = {column->rows[i], value};
  }
  return least;
}

void add_loss_figures(Json& figures, const StepTable& table, const char* field, const std::string& name) {
  const StepColumn* column = table.find(field);
  const auto [row, least] = least_of(column);
  figures[name + "_last"] = column ? exact_number(column->values.back()) : Json();
  figures[name + "_least"] = exact_number(least);
  figures[name + "_least_step"] = std::isfinite(least) ? Json(table.steps[row]) : Json();
}

Json median_json(const StepColumn& column) {
  std::vector<double> finite;
  std::ranges::copy_if(column.values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
  return finite.empty() ? Json() : Json(median_of(std::move(finite)));
}

}  // namespace

Json figures_json(const ReportedRun& run) {
  const StepTable& table = run.table;
  Json figures = {{"step", table.steps.back()},
                  {"steps", run.config.run.steps},
                  {"tokens", std::llround(table.tokens.back())},
                  {"seconds", table.seconds.back()},
                  {"loss_first", table.find("loss") ? exact_number(table.find("loss")->values.front()) : Json()}};
  add_loss_figures(figures, table, "loss", "loss");
  add_loss_figures(figures, table, "validation.loss", "validation");
  for (const char* field : {"tokens_per_second", "tflops", "mfu", "data_seconds", "grad_norm"}) {
    figures[field] = median_json(table.own(field));
  }
  const StepColumn* rates = table.find("lr");
  const StepColumn peaks = table.own("peak_bytes");
  figures["lr_last"] = rates ? exact_number(rates->values.back()) : Json();
  figures["peak_bytes"] = peaks.rows.empty() ? Json() : exact_number(peaks.values[highest_of(peaks)]);
  figures["spikes"] = table.spikes.size();
  return figures;
}

}  // namespace weft
