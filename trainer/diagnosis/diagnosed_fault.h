// The verdict of a rule on a run: a fault of its settings with the evidence, no fault, or not checkable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

// Where a figure comes from.
enum class Basis : std::uint8_t {
  measured,   // counted by the run's communicators or ledgers, or timed in its traces
  predicted,  // read off the compiled program or its dry run: bytes and counts, no times
  modelled,   // seconds from operations, bytes, and the figures of a row of hardware
};
constexpr std::string_view name_of(Basis basis) {
  constexpr std::string_view names[] = {"measured", "predicted", "modelled"};
  return names[static_cast<std::size_t>(basis)];
}

// A figure of the run beside the figure that it is compared with.
struct EvidenceLine {
  std::string what;
  std::string value, expected;
  std::string source;  // the file or hardware row that holds the value
  Basis basis = Basis::measured;

  bool operator==(const EvidenceLine&) const = default;
};

// Time of a step that a fault costs. Measured: shown by the traces of one rank, named in `source`; a change saves at
// most this time.
struct StepCost {
  double seconds = 0.0;
  Basis basis = Basis::measured;
  std::string source = {};

  bool operator==(const StepCost&) const = default;
};

// Memory of the fullest rank that a fault costs. Measured: bytes above the prediction. Predicted: bytes above the
// prediction for the changed setting.
struct MemoryCost {
  std::int64_t bytes = 0;
  Basis basis = Basis::measured;
  std::string source = {};

  bool operator==(const MemoryCost&) const = default;
};

// A key of the configuration and its new value in TOML syntax.
struct SettingChange {
  std::string setting, value;
  std::string why = {};

  bool operator==(const SettingChange&) const = default;
};

struct DiagnosedFault {
  std::string rule = {};  // its name, filled in by diagnose()
  std::string sentence;
  // Absent if the run's files do not tell a cost, or show none.
  std::optional<StepCost> step = {};
  std::optional<MemoryCost> memory = {};
  std::vector<EvidenceLine> evidence = {};
  std::vector<SettingChange> changes = {};

  bool operator==(const DiagnosedFault&) const = default;
};

struct RuleVerdict {
  enum class Outcome : std::uint8_t { found, silent, unchecked };
  Outcome outcome = Outcome::silent;
  std::optional<DiagnosedFault> finding = {};
  std::string note = {};  // why it is silent where that may surprise, or which data is missing

  static RuleVerdict found(DiagnosedFault finding) { return {Outcome::found, std::move(finding)}; }
  static RuleVerdict silent(std::string note = {}) { return {Outcome::silent, std::nullopt, std::move(note)}; }
  static RuleVerdict unchecked(std::string note) { return {Outcome::unchecked, std::nullopt, std::move(note)}; }

  bool operator==(const RuleVerdict&) const = default;
};

}  // namespace weft
