#include "trainer/jinja/template.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/jinja/interpreter.h"

namespace weft::jinja {

Interpreter::Interpreter(const Program& program, const std::map<std::string, Value>& variables, std::time_t now,
                         std::int64_t budget)
    : program_(program), read_(nullptr), now_(now), budget_{budget}, running_(true), scopes_(1) {
  for (const auto& [name, value] : variables) assign(name, {value});
}

Interpreter::Interpreter(Program& program)
    : program_(program), read_(&program), now_(0), budget_{INT64_MAX}, running_(false), scopes_(1) {
  program.ends.resize(program.tokens.size());
}

Interpreter::Deeper::Deeper(Interpreter& interpreter) : depth(interpreter.depth_) {
  constexpr int deepest = 200;
  if (depth == deepest) fail_request("brackets, bodies and macros are nested deeper than {} levels", deepest);
  ++depth;
}

bool Interpreter::is(std::string_view text, std::size_t ahead) const {
  if (at_ + ahead >= program_.tokens.size()) return false;
  const Token& token = program_.tokens[at_ + ahead];
  return (token.kind == TokenKind::name || token.kind == TokenKind::symbol) && token.text == text;
}

bool Interpreter::is_one_of(Names texts) const {
  return std::ranges::any_of(texts, [&](std::string_view text) { return is(text); });
}

const std::string& Interpreter::take() {
  budget_.spend(Budget::token);
  return program_.tokens[is(TokenKind::end) ? at_ : at_++].text;
}

bool Interpreter::took(std::string_view text) {
  const bool found = is(text);
  if (found) take();
  return found;
}

std::string Interpreter::found() const {
  return program_.tokens[at_].text.empty() ? "the end of the tag" : fmt::format("'{}'", program_.tokens[at_].text);
}

void Interpreter::expect(std::string_view text) {
  if (!took(text)) fail_request("'{}' expected in place of {}", text, found());
}

const std::string& Interpreter::expect(TokenKind kind, std::string_view called) {
  if (!is(kind)) fail_request("{} expected in place of {}", called, found());
  return take();
}

Interpreter::Variable* Interpreter::find(std::string_view name) {
  for (std::size_t i = scopes_.size(); i-- > 0;) {
    if (i > 0 && i < first_scope_) continue;
    const auto found = scopes_[i].find(name);
    if (found != scopes_[i].end()) return &found->second;
  }
  return nullptr;
}

bool Interpreter::is_function(std::string_view name) {
  constexpr std::array<std::string_view, 3> known = {"namespace", "raise_exception", "strftime_now"};
  return find(name) == nullptr && (macros_.contains(name) || std::ranges::find(known, name) != known.end());
}

void Interpreter::assign(const std::string& name, Variable variable) {
  scopes_.back().insert_or_assign(name, std::move(variable));
}

void Interpreter::write(const std::string& text) {
  if (!running_) return;
  budget_.spend(text.size());
  rendering_.text += text;
}

void Interpreter::body(Names ends) {
  const Deeper deeper(*this);
  while (!is(TokenKind::end)) {
    if (is(TokenKind::data)) {
      write(take());
    } else if (is(TokenKind::open_output)) {
      take();
      const Value value = expression();
      write(running_ ? text_of(*value) : "");
      expect(TokenKind::close_output, "'}}'");
    } else {
      take();
      if (is_one_of(ends)) return;
      statement();
      expect(TokenKind::close_tag, "'%}'");
    }
  }
  if (ends.size() > 0) fail_request("a body ends without '{}'", *(ends.end() - 1));
}

// The body behind the end of a tag, run or read.
void Interpreter::body_if(bool runs, Names ends) {
  expect(TokenKind::close_tag, "'%}'");
  running_ = runs;
  const std::size_t begin = at_, behind = program_.ends[begin];
  if (!runs && behind > 0) {
    at_ = behind;
  } else {
    body(ends);
  }
  if (read_ != nullptr) read_->ends[begin] = at_;
}

// The text that the body up to the tag `end` writes. `kept`: into a text of its own.
std::string Interpreter::closed(std::string_view end, bool kept) {
  std::string outer = kept ? std::exchange(rendering_.text, {}) : std::string();
  const int loops = std::exchange(loops_, 0);
  const bool captured = std::exchange(captured_, captured_ || kept);
  body_if(running_, {end});
  take();
  loops_ = loops;
  captured_ = captured;
  return kept ? std::exchange(rendering_.text, std::move(outer)) : outer;
}

void Interpreter::statement() {
  if (took("if")) return branches();
  if (took("for")) return loop();
  if (took("set")) return assignment();
  if (took("macro")) return macro();
  if (took("generation")) return generation();
  const bool next = is("continue");
  if (!next && !is("break")) fail_request("Weft runs no tag '{}'", program_.tokens[at_].text);
  if (loops_ == 0) fail_request("'{}' stands outside of a loop", program_.tokens[at_].text);
  take();
  if (running_) flow_ = next ? Flow::next_round : Flow::end_loop;
  running_ = false;
}

void Interpreter::branches() {
  const bool runs = running_;
  bool found = false;
  do {
    running_ = runs && !found;
    const Value condition = operation();
    const bool holds = running_ && is_true(*condition);
    body_if(holds, {"elif", "else", "endif"});
    found = found || holds;
  } while (took("elif"));
  if (took("else")) body_if(runs && !found, {"endif"});
  expect("endif");
  running_ = runs && flow_ == Flow::on;
}

void Interpreter::loop() {
  const bool runs = running_;
  std::vector<std::string> names;
  const bool bracketed = took("(");
  do {
    names.push_back(expect(TokenKind::name, "the name of a variable"));
  } while (took(","));
  if (bracketed) expect(")");
  expect("in");
  const Value of = operation();
  Loop loop{runs ? items_of(of, budget_) : std::vector<Value>()};
  if (took("if")) {
    const std::size_t condition = at_;
    std::erase_if(loop.items, [&](const Value& item) {
      const Inside inside(*this);
      assign_all(names, item);
      at_ = condition;
      return !is_true(*expression());
    });
    at_ = condition;
    running_ = false;
    expression();
  }
  const std::size_t begin = at_;
  const bool empty = loop.items.empty();
  bool finished = false;  // a round, to its end: otherwise Jinja runs the body of else, too
  ++loops_;
  for (Flow flow = Flow::on; flow != Flow::end_loop && (loop.at == 0 || loop.at < loop.items.size()); ++loop.at) {
    const Inside inside(*this);
    assign("loop", {nullptr, nullptr, &loop});
    if (!empty) assign_all(names, loop.items[loop.at]);
    at_ = begin;
    body_if(!empty, {"else", "endfor"});
    flow = runs ? std::exchange(flow_, Flow::on) : Flow::end_loop;
    finished = finished || (!empty && flow == Flow::on);
  }
  --loops_;
  if (took("else")) body_if(runs && !finished, {"endfor"});
  expect("endfor");
  running_ = runs && flow_ == Flow::on;
}

void Interpreter::assign_all(const std::vector<std::string>& names, const Value& item) {
  if (names.size() == 1) return assign(names[0], {item});
  const std::vector<Value> values = items_of(item, budget_);
  if (values.size() != names.size()) fail_request("{} values for {} variables", values.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) assign(names[i], {values[i]});
}

void Interpreter::assignment() {
  const std::string& name = expect(TokenKind::name, "the name of a variable");
  if (!is("=") && !is(".")) {
    std::string text;
    {
      const Inside inside(*this);
      text = closed("endset", true);
    }
    if (running_) assign(name, {made(std::move(text))});
    return;
  }
  const std::string member = took(".") ? expect(TokenKind::name, "a name") : "";
  expect("=");
  if (member.empty() && is("namespace") && is("(", 1)) {
    take();
    Arguments all = arguments();
    if (!all.given.empty()) fail_request("'namespace' has an argument without a name");
    if (running_) assign(name, {nullptr, std::make_shared<Members>(std::move(all.named))});
    return;
  }
  Value value = expression();
  if (!running_) return;
  if (member.empty()) return assign(name, {std::move(value)});
  const Variable* found = find(name);
  if (found == nullptr || found->members == nullptr) fail_request("'{}' is no namespace", name);
  found->members->insert_or_assign(member, std::move(value));
}

void Interpreter::macro() {
  if (captured_ || loops_ > 0) fail_request("a macro stands in a loop, a macro or a set");
  const std::string& name = expect(TokenKind::name, "the name of a macro");
  if (running_) macros_.insert_or_assign(name, at_);
  const bool runs = std::exchange(running_, false);
  expanded({});
  running_ = runs;
}

// The parameters and the body of a macro.
std::string Interpreter::expanded(Arguments all) {
  expect("(");
  while (!took(")")) {
    const std::size_t place = all.places;
    const std::string& name = expect(TokenKind::name, "the name of a parameter");
    Value value = all(name);
    const bool given = place < all.given.size() || all.named.contains(name);
    const bool runs = std::exchange(running_, running_ && !given);
    if (took("=")) {
      const Value otherwise = expression();
      if (running_) value = otherwise;
    }
    running_ = runs;
    if (runs) assign(name, {value});
    if (!is(")")) expect(",");
  }
  if (running_) all.finish("macro");
  return closed("endmacro", true);
}

Value Interpreter::expand(std::size_t macro, Arguments all) {
  const Deeper deeper(*this);
  const std::size_t behind = std::exchange(at_, macro), outer = std::exchange(first_scope_, scopes_.size());
  const Inside inside(*this);
  std::string text = expanded(std::move(all));
  at_ = behind;
  first_scope_ = outer;
  budget_.spend(text.size());
  return made(std::move(text));
}

void Interpreter::generation() {
  if (captured_) fail_request("'generation' stands in a macro or a set");
  if (read_ != nullptr) read_->has_generation = true;
  const Inside inside(*this);
  const std::size_t begin = rendering_.text.size();
  closed("endgeneration", false);
  if (running_) rendering_.generated.push_back({begin, rendering_.text.size()});
}

Rendering Interpreter::whole(const std::string& name) {
  try {
    body({});
    return std::move(rendering_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    fail_request("{}:{}: {}", name, program_.tokens[at_].line, error.what());
  }
}

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), program_{tokens_of(source, name_), {}} {
  Interpreter(program_).whole(name_);
}

Rendering Template::render(const std::map<std::string, Value>& variables, std::time_t now, std::int64_t budget) const {
  return Interpreter(program_, variables, now, budget).whole(name_);
}

}  // namespace weft::jinja
