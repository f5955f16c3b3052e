// What a rule says of a run: a fault of its settings with the evidence, or that there is none, or that it cannot tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// One figure of the run beside what it is held against.
struct EvidenceLine {
  std::string what;
  std::string measured, expected;
  std::string source;  // the file that has the measured one

  bool operator==(const EvidenceLine&) const = default;
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
  // What the fault costs where that can be estimated: seconds of a step, or bytes of the fullest rank.
  std::optional<double> seconds = {};
  std::optional<std::int64_t> bytes = {};
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
