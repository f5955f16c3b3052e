// Runs the tokens of a template. There is no tree: what is not to be run is read without being computed, and what is
// run again is read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/jinja/functions.h"
#include "trainer/jinja/template.h"
#include "trainer/jinja/tokens.h"
#include "trainer/jinja/value.h"

namespace weft::jinja {

class Interpreter {
 public:
  // Runs a template, or only reads it and writes down what `program` is to have besides tokens.
  Interpreter(const Program& program, const std::map<std::string, Value>& variables, std::time_t now,
              std::int64_t budget);
  explicit Interpreter(Program& program);

  // Throws Error (request), `name:line: why`.
  Rendering whole(const std::string& name);

 private:
  using Names = std::initializer_list<std::string_view>;
  struct Loop {
    std::vector<Value> items;
    std::size_t at = 0;
  };
  struct Variable {
    Value value;  // null for those that have parts and are no values: namespaces, and `loop`
    std::shared_ptr<Members> members = nullptr;
    const Loop* loop = nullptr;
  };
  using Scope = std::map<std::string, Variable, std::less<>>;
  struct Inside {
    explicit Inside(Interpreter& interpreter) : scopes(interpreter.scopes_) { scopes.emplace_back(); }
    ~Inside() { scopes.pop_back(); }
    std::vector<Scope>& scopes;
  };
  // Brackets, bodies and macros in one another.
  struct Deeper {
    explicit Deeper(Interpreter& interpreter);
    ~Deeper() { --depth; }
    int& depth;
  };
  enum class Flow { on, next_round, end_loop };

  bool is(TokenKind kind) const { return program_.tokens[at_].kind == kind; }
  bool is(std::string_view text, std::size_t ahead = 0) const;  // a name or symbol
  bool is_one_of(Names texts) const;
  bool took(std::string_view text);
  const std::string& take();
  void expect(std::string_view text);
  const std::string& expect(TokenKind kind, std::string_view called);
  std::string found() const;  // the token, in messages

  Variable* find(std::string_view name);
  bool is_function(std::string_view name);
  void assign(const std::string& name, Variable variable);

  // Expressions: null where nothing runs.
  Value expression();
  Value operation(int level = 0);  // without a condition
  bool has_condition();
  Value comparison();
  Value unary(bool filtered);
  Value test(const Value& of);
  Value primary();
  Value variable();
  Value collection(std::string_view end, bool keys);
  Value postfixed(Value of);
  Value subscript(const Value& of);
  Arguments arguments();
  Value call(const std::string& name);
  Value expand(std::size_t macro, Arguments all);

  void body(Names ends);  // up to the name of a tag that ends it
  void body_if(bool runs, Names ends);
  std::string closed(std::string_view end, bool kept);
  void write(const std::string& text);
  void statement();
  void branches();
  void loop();
  void assign_all(const std::vector<std::string>& names, const Value& item);
  void assignment();
  void macro();
  std::string expanded(Arguments all);
  void generation();

  const Program& program_;
  Program* const read_;  // null where the template runs
  std::size_t at_ = 0;
  const std::time_t now_;
  Budget budget_;
  bool running_;
  Flow flow_ = Flow::on;         // otherwise nothing runs up to the end of the round
  std::vector<Scope> scopes_;    // from the outermost on; the first is the template's
  std::size_t first_scope_ = 0;  // of the macro that runs: it sees its own scopes and the template's
  std::map<std::string, std::size_t, std::less<>> macros_ = {};  // their parameters' places
  Rendering rendering_ = {};
  int depth_ = 0, loops_ = 0;  // loops: that a statement may leave
  bool captured_ = false;
};

}  // namespace weft::jinja
