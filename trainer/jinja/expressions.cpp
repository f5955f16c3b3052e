#include <algorithm>
#include <array>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/jinja/interpreter.h"

namespace weft::jinja {
namespace {

Value of_loop(const std::vector<Value>& items, std::size_t at, std::string_view name) {
  if (name == "index") return made(at + 1);
  if (name == "index0") return made(at);
  if (name == "revindex") return made(items.size() - at);
  if (name == "revindex0") return made(items.size() - at - 1);
  if (name == "first") return made(at == 0);
  if (name == "last") return made(at + 1 == items.size());
  if (name == "length") return made(items.size());
  if (name == "previtem") return at == 0 ? undefined() : items[at - 1];
  if (name == "nextitem") return at + 1 == items.size() ? undefined() : items[at + 1];
  fail_request("Weft knows no 'loop.{}'", name);
}

Value local_time(std::time_t now, const std::string& format) {
  std::tm parts = {};
  localtime_r(&now, &parts);
  std::array<char, 256> text = {};
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &parts);
  const bool differs =
      format.find("%f") != format.npos || format.find("%z") != format.npos || format.find("%Z") != format.npos;
  if (size == 0 || differs) fail_request("strftime_now gets \"{}\"", format);
  return made(std::string(text.data(), size));
}

}  // namespace

Value Interpreter::expression() {
  const Deeper deeper(*this);
  const bool runs = running_;
  const std::size_t begin = at_;
  running_ = runs && !has_condition();
  Value value = operation();
  running_ = runs;
  if (!took("if")) {
    if (!runs || value != nullptr) return value;
    at_ = begin;  // an attribute, or so, is called `if`
    return operation();
  }
  const Value condition = operation();
  const bool holds = runs && is_true(*condition);
  if (holds) {
    const std::size_t behind = std::exchange(at_, begin);
    value = operation();
    at_ = behind;
  }
  running_ = runs && !holds;
  const Value otherwise = took("else") ? expression() : undefined();
  running_ = runs;
  return holds ? value : otherwise;
}

// Whether an `if` may follow the operation that begins here.
bool Interpreter::has_condition() {
  for (std::size_t i = at_, brackets = 0;
       program_.tokens[i].kind != TokenKind::close_output && program_.tokens[i].kind != TokenKind::close_tag; ++i) {
    budget_.spend(Budget::token);
    const Token& token = program_.tokens[i];
    const bool symbol = token.kind == TokenKind::symbol;
    if (symbol && token.text.find_first_of("([{") == 0) ++brackets;
    if (symbol && token.text.find_first_of(")]}") == 0 && brackets-- == 0) return false;
    if (brackets == 0 && symbol && token.text.find_first_of(",:") == 0) return false;
    if (brackets == 0 && token.kind == TokenKind::name && token.text == "if") return true;
  }
  return false;
}

// Operators from a level on.
Value Interpreter::operation(int level) {
  constexpr int strongest = 4;
  if (level > strongest) return unary(/*filtered=*/true);
  const auto operand = [&] { return level == 1 ? comparison() : operation(level + 1); };
  Value left = operand();
  while (program_.tokens[at_].level == level) {
    const std::string& name = take();
    const bool runs = running_, decided = runs && level < 2 && is_true(*left) == (name == "or");
    running_ = runs && !decided;
    const Value right = operand();
    running_ = runs;
    if (runs && !decided) left = level < 2 ? right : combined(name, left, right, budget_);
  }
  return left;
}

Value Interpreter::comparison() {
  if (took("not")) {
    const Deeper deeper(*this);
    const Value of = comparison();
    return running_ ? made(!is_true(*of)) : nullptr;
  }
  const Value left = operation(2);
  const bool negated = is("not") && is("in", 1);
  if (negated) take();
  if (!is_one_of({"==", "!=", "<=", ">=", "<", ">", "in"})) return left;
  const std::string& name = take();
  const Value right = operation(2);
  if (is_one_of({"==", "!=", "<=", ">=", "<", ">", "in", "not"}))
    fail_request("Weft runs no chains of comparisons; 'and' joins them");
  if (!running_) return nullptr;
  const Value result = combined(name, left, right, budget_);
  return negated ? made(!is_true(*result)) : result;
}

Value Interpreter::unary(bool filtered) {
  const Deeper deeper(*this);
  Value value;
  if (took("-")) {
    value = unary(false);
    if (running_) value = combined("-", made(0), value, budget_);
  } else {
    value = primary();
  }
  value = postfixed(std::move(value));
  while (filtered && (is("|") || is("is"))) {
    if (took("is")) {
      value = test(value);
      continue;
    }
    take();
    const std::string& name = expect(TokenKind::name, "the name of a filter");
    Arguments all = is("(") ? arguments() : Arguments();
    if (running_) value = applied(FunctionKind::filter, name, value, std::move(all), budget_);
  }
  return value;
}

Value Interpreter::test(const Value& of) {
  const bool negated = took("not");
  const std::string& name = expect(TokenKind::name, "the name of a test");
  Arguments all;
  if (is("(")) {
    all = arguments();
  } else if (is(TokenKind::text) || is(TokenKind::integer) || is("[") ||
             (is(TokenKind::name) && !is("else") && !is("or") && !is("and"))) {
    all.given.push_back(postfixed(primary()));
  }
  return running_ ? made(is_true(*applied(FunctionKind::test, name, of, std::move(all), budget_)) != negated) : nullptr;
}

Value Interpreter::primary() {
  if (is(TokenKind::text)) {
    std::string text;
    while (is(TokenKind::text)) text += take();
    return running_ ? made(std::move(text)) : nullptr;
  }
  if (is(TokenKind::integer)) {
    const Json integer = Json::parse(take(), nullptr, /*allow_exceptions=*/false);
    return made(integer_in(integer));
  }
  if (is(TokenKind::name)) return variable();
  if (took("[")) return collection("]", false);
  if (took("{")) return collection("}", true);
  if (!took("(")) fail_request("a value expected in place of {}", found());
  Value value = expression();
  if (is(",")) fail_request("Weft knows no tuples");
  expect(")");
  return value;
}

Value Interpreter::variable() {
  const std::string& name = take();
  if (name == "true" || name == "True") return made(true);
  if (name == "false" || name == "False") return made(false);
  if (name == "none" || name == "None") return made(nullptr);
  if (is("(")) return call(name);
  if (!running_) return nullptr;
  const Variable* found = find(name);
  if (found == nullptr) return is_function(name) ? made(Json::binary({})) : undefined();
  if (found->value != nullptr) return found->value;
  if (!took(".")) fail_request("'{}' is used as a value", name);
  const std::string& part = expect(TokenKind::name, "a name");
  if (found->loop != nullptr) return of_loop(found->loop->items, found->loop->at, part);
  const auto member = found->members->find(part);
  return member == found->members->end() ? undefined() : member->second;
}

// Of a list without keys, or of a dict.
Value Interpreter::collection(std::string_view end, bool keys) {
  Json all = keys ? Json::object() : Json::array();
  while (!took(end)) {
    const Value key = keys ? expression() : nullptr;
    if (keys) expect(":");
    const Value value = expression();
    if (!is(end)) expect(",");
    if (!running_) continue;
    budget_.spend_copy(*value, 1);
    (keys ? all[text_in(*key)] : all.emplace_back()) = *value;
  }
  return running_ ? made(std::move(all)) : nullptr;
}

Value Interpreter::postfixed(Value of) {
  while (true) {
    if (took("[")) {
      of = subscript(of);
    } else if (took(".")) {
      const std::string& name = expect(TokenKind::name, "a name");
      const bool method = is("(");
      Arguments all = method ? arguments() : Arguments();
      if (!running_) continue;
      if (!method) refuse_method(name, *of);
      of = method ? applied(FunctionKind::method, name, of, std::move(all), budget_) : item_of(of, name);
    } else {
      return of;
    }
  }
}

Value Interpreter::subscript(const Value& of) {
  std::vector<Value> parts;
  do {
    parts.push_back(is(":") || is("]") ? undefined() : expression());
  } while (took(":"));
  expect("]");
  if (!running_) return nullptr;
  if (parts.size() == 1) return item_of(of, *parts[0]);
  if (parts.size() > 3) fail_request("a slice has {} parts", parts.size());
  return slice_of(of, *parts[0], *parts[1], parts.size() > 2 ? *parts[2] : Json(), budget_);
}

Arguments Interpreter::arguments() {
  Arguments all;
  expect("(");
  while (!took(")")) {
    if (is("*") || is("**")) fail_request("Weft unpacks no arguments");
    if (is(TokenKind::name) && is("=", 1)) {
      const std::string& name = take();
      take();
      all.named.insert_or_assign(name, expression());
    } else {
      if (!all.named.empty()) fail_request("an argument without a name follows one with a name");
      all.given.push_back(expression());
    }
    if (!is(")")) expect(",");
  }
  return all;
}

Value Interpreter::call(const std::string& name) {
  Arguments all = arguments();
  if (!running_) return nullptr;
  if (!is_function(name)) fail_request("Weft knows no function '{}'", name);
  if (const auto macro = macros_.find(name); macro != macros_.end()) return expand(macro->second, std::move(all));
  if (name == "raise_exception") fail_request("{}", text_of(*all("message")));
  if (name == "strftime_now") return local_time(now_, text_in(*all("format")));
  fail_request("'{}' is called where no variable is set to it alone", name);
}

}  // namespace weft::jinja
