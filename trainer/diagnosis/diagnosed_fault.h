// What a rule says of a run: a fault of its settings with the evidence, or that there is none, or that it cannot tell.
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

// One figure of the run beside what it is held against.
struct EvidenceLine {
  std::string what;
  std::string value, expected;
  std::string source;  // the file, or the row of hardware, that has the value
  Basis basis = Basis::measured;

  bool operator==(const EvidenceLine&) const = default;
};

// What a fault takes of a step. Measured: a time that the traces show of one rank, which `source` names; a change
// brings no more than that.
struct StepCost {
  double seconds = 0.0;
  Basis basis = Basis::measured;
  std::string source = {};

  bool operator==(const StepCost&) const = default;
};

// What a fault takes of the fullest rank's memory. Measured: beyond the prediction. Predicted: beyond the prediction of
// the changed setting.
struct MemoryCost {
  std::int64_t bytes = 0;
  Basis basis = Basis::measured;
  std::string source = {};

  bool operator==(const MemoryCost&) const = default;
};

// A key of the configuration and what to write there, in TOML's syntax.
struct SettingChange {
  std::string setting, value;
  std::string why = {};

  bool operator==(const SettingChange&) const = default;
};

struct DiagnosedFault {
  std::string rule = {};  // its name, filled in by diagnose()
  std::string sentence;
  // Absent where the run's files do not tell, and where they show none.
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
  std::string note = {};  // why it is silent where that may surprise, or what it lacks

  static RuleVerdict found(DiagnosedFault finding) { return {Outcome::found, std::move(finding)}; }
  static RuleVerdict silent(std::string note = {}) { return {Outcome::silent, std::nullopt, std::move(note)}; }
  static RuleVerdict unchecked(std::string note) { return {Outcome::unchecked, std::nullopt, std::move(note)}; }

  bool operator==(const RuleVerdict&) const = default;
};

}  // namespace weft
