// Chat templates and small pieces of templates, held against what transformers makes of them (jinja2), and the limits
// of what a template may take.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/jinja/template.h"

namespace weft::jinja {
namespace {

constexpr std::time_t golden_day = 1'721'995'200;  // noon of 26 July 2024, of tools/compare/chat_templates.py
const std::string folder = WEFT_SOURCE_DIR "/tests/trainer/chat_templates/";

std::map<std::string, Value> variables_of(const Json& json) {
  std::map<std::string, Value> variables;
  for (const auto& [name, value] : json.items()) variables[name] = made(value);
  return variables;
}

// Empty if the template is rendered.
std::string refusal(const std::string& source, const Json& variables = Json::object()) {
  return refusal_of([&] { Template(source, "t").render(variables_of(variables), golden_day); }).value_or("");
}
std::string rendered(const std::string& source, const Json& variables = Json::object()) {
  return Template(source, "t").render(variables_of(variables), golden_day).text;
}

TEST(ChatTemplates, RenderAsInTransformers) {
  std::ifstream lines(WEFT_SOURCE_DIR "/tests/trainer/chat_templates_golden.jsonl");
  int texts = 0, refusals = 0, marked = 0;
  std::string line;
  std::getline(lines, line);
  const Json inputs = Json::parse(line);
  while (std::getline(lines, line)) {
    const Json golden = Json::parse(line);
    const bool whole = golden.contains("file");
    const auto source =
        whole ? read_whole_file(folder + golden["file"].get<std::string>()) : golden["template"].get<std::string>();
    Json variables = whole ? inputs["conversations"][golden["conversation"].get<std::size_t>()] : inputs["pieces"];
    if (whole) variables["add_generation_prompt"] = golden["prompt"];
    SCOPED_TRACE(whole ? golden["file"].dump() + variables.dump() : source);
    if (golden.contains("error")) {
      ++refusals;
      EXPECT_NE(refusal(source, variables), "") << golden["error"];
      continue;
    }
    ++texts;
    const auto why = refusal_of([&] {
      const Rendering rendering = Template(source, "t").render(variables_of(variables), golden_day);
      EXPECT_EQ(rendering.text, golden["text"].get<std::string>());
      if (!golden.contains("spans")) return;
      ++marked;
      Json spans = Json::array();
      for (const Span& span : rendering.generated) spans.push_back({span.begin, span.end});
      EXPECT_EQ(spans, golden["spans"]);
    });
    EXPECT_EQ(why, std::nullopt);
  }
  EXPECT_GT(texts, 350);
  EXPECT_GT(refusals, 80);
  EXPECT_GT(marked, 30);
}

TEST(ChatTemplates, RefuseByNameAndLine) {
  for (const auto& [source, why] : std::map<std::string, std::string>{
           {"a\n{% include 'b' %}", "t:2: Weft runs no tag 'include'"},
           {"{% raw %}{% endraw %}", "t:1: Weft runs no tag 'raw'"},
           {"{% call f() %}{% endcall %}", "t:1: Weft runs no tag 'call'"},
           {"\n\n{{ 'a' | urlize }}", "t:3: Weft knows no filter 'urlize' of a text"},
           {"{{ 'a' is\n callable }}", "t:2: Weft knows no test 'callable' of a text"},
           {"{{ 'a'.format(1) }}", "t:1: Weft knows no method 'format' of a text"},
           {"{{ range(3) }}", "t:1: Weft knows no function 'range'"},
           {"{{ 'é' | upper }}", "t:1: Weft knows upper and lower case of ASCII alone"},
           {"{{ [1] }}", "t:1: a list is printed; tojson makes a text of lists and dicts, and 'join' of others"},
           {"{{ 1, 2 }}", "t:1: '}}' expected in place of ','"},
           {"{{ (1, 2) }}", "t:1: Weft knows no tuples"},
           {"{{ 2 ** 3 }}", "t:1: '**' of 2 and 3"},
           {"{{ 1 / 2 }}", "t:1: '/' of 1 and 2"},
           {"{{ 1 < 2 < 3 }}", "t:1: Weft runs no chains of comparisons; 'and' joins them"},
           {"{{ f(*a) }}", "t:1: Weft unpacks no arguments"},
           {"{{ '\\d' }}", "t:1: a text has an escape that Weft does not know, \\d"},
           {"{{ {}.items }}", "t:1: the method 'items' is used as a value"},
           {"{{ 'a'.split is defined }}", "t:1: the method 'split' is used as a value"},
           {"{{ 'x' if ['a'].index }}", "t:1: the method 'index' is used as a value"},
           {"{{ {}['get'] is defined }}", "t:1: the method 'get' is used as a value"},
           {"{{ ['a'] | map(attribute='strip') | first }}", "t:1: the method 'strip' is used as a value"},
           {"{{ ['a'] | map('map', 'upper') }}", "t:1: Weft runs no 'map' by a 'map'"},
           {"{{ ([1] | select)[0] }}", "t:1: 0 of a generator is read"},
           {"{{ [1] | reverse == [1] }}", "t:1: a generator is put in a list or a dict, or compared"},
           {"{{ [{}.keys()] | length }}", "t:1: a view of a dict is put in a list or a dict, or compared"},
           {"{% set a = [1] | select %}{{ a | join }}\n{{ a | join }}",
            "t:2: a generator is gone over again; 'list' makes a list of one"},
           {"{% set a = namespace(b=1) %}{{ a }}", "t:1: 'a' is used as a value"},
           {"{% for a in [1] %}{{ loop }}{% endfor %}", "t:1: 'loop' is used as a value"},
           {"{% for a in [1] recursive %}{% endfor %}", "t:1: '%}' expected in place of 'recursive'"},
           {"{% for a in [1] %}{% macro b() %}{% endmacro %}{% endfor %}",
            "t:1: a macro stands in a loop, a macro or a set"},
           {"{% set a %}{% generation %}{% endgeneration %}{% endset %}",
            "t:1: 'generation' stands in a macro or a set"},
           {"{{ 3000000000 + 1 }}", "t:1: Weft computes of numbers up to 2147483647"},
           {"{{ strftime_now('%f') }}", "t:1: strftime_now gets \"%f\""},
           {"{{ 'a\xff' }}", "t:1: the template is no UTF-8"},
           {"\n{{ raise_exception('No tools: ' ~ 1) }}", "t:2: No tools: 1"}}) {
    EXPECT_EQ(refusal(source), why) << source;
  }
  // `if` may be a name, though it looks like a condition at first.
  EXPECT_EQ(rendered("{% set d = {'if': 1} %}{{ d.if }}{{ d.if if d.if }}[{{ if }}]{{ 'a' ~ if }}"), "11[]a");
  // Syntax is refused before anything is rendered, the rest where it is reached.
  EXPECT_THROW(Template("{% if false %}{{ 1 + }}{% endif %}", "t"), Error);
  EXPECT_EQ(rendered("{% if false %}{{ 1 | nosuch }}{{ nosuch(1) }}{% endif %}a"), "a");
}

TEST(ChatTemplates, AreBounded) {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string deep = "nested deeper than", dear = "takes more time and memory";
  const auto expect = [](const std::string& source, const std::string& why) {
    const auto budget = std::int64_t{1} << 22;
    const auto told = refusal_of([&] { Template(source, "t").render({}, golden_day, budget); }).value_or("");
    EXPECT_NE(told.find(why), std::string::npos) << source.substr(0, 80) << ": " << told;
  };
  for (const auto& [open, close] : std::map<std::string, std::string>{{"(", ")"},
                                                                      {"[", "]"},
                                                                      {"{1:", "}"},
                                                                      {"a[", "]"},
                                                                      {"not ", ""},
                                                                      {"-", ""},
                                                                      {"a if b else ", ""},
                                                                      {"f(", ")"}}) {
    expect("{{ " + repeated(open, 10'000) + "1" + repeated(close, 10'000) + " }}", deep);
  }
  expect(repeated("{% if true %}", 10'000), deep);
  expect(repeated("{% for a in b %}", 10'000), deep);
  expect("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", deep);
  expect("{% set s = namespace(l=[]) %}{% for a in '" + repeated("x", 400) + "' %}{% set s.l = [s.l] %}{% endfor %}",
         deep);
  const std::string hundred = "{% for a in '" + repeated("x", 100) + "' %}";
  expect(hundred + hundred + hundred + hundred + "a" + repeated("{% endfor %}", 4), dear);
  for (const char* growing :
       {"s.t ~ s.t", "s.t + s.t", "s.t.replace('x', 'xx')", "[s.t, s.t] | join", "[s.t, s.t] | tojson"}) {
    expect("{% set s = namespace(t='x') %}" + hundred + "{% set s.t = " + growing + " %}{% endfor %}", dear);
  }
  expect("{% set s = namespace(t=['x']) %}" + hundred + "{% set s.t = s.t + s.t %}{% endfor %}", dear);
  // Chains without brackets are not nested.
  EXPECT_EQ(rendered("{{ 1" + repeated(" + 1", 5'000) + " }}{{ 'a'" + repeated(" | trim", 5'000) + " }}"), "5001a");
}

// A copy of the template is cut short, or loses a byte, or has one more: it is read or refused, and nothing else
// happens.
TEST(ChatTemplates, DamagedOnesAreReadOrRefused) {
  const std::string bytes = "{}%'\"|.()[]-+ \nx=,:";
  std::uint32_t state = 1;
  const auto drawn = [&](std::size_t below) {
    state = state * 1'664'525u + 1'013'904'223u;
    return static_cast<std::size_t>(state >> 8) % below;
  };
  const Json variables = {
      {"messages", {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}},
      {"bos_token", "<s>"},
      {"eos_token", "</s>"}};
  for (const char* name : {"llama2", "qwen3", "mistral_nemo", "marked", "zephyr"}) {
    const std::string whole = read_whole_file(folder + name + ".jinja");
    EXPECT_EQ(refusal(whole, variables), "");
    for (int i = 0; i < 300; ++i) {
      std::string damaged = whole;
      const std::size_t at = drawn(whole.size());
      if (i % 3 == 0) damaged.resize(at);
      if (i % 3 == 1) damaged.erase(at, 1 + drawn(3));
      if (i % 3 == 2) damaged.insert(at, 1, bytes[drawn(bytes.size())]);
      refusal(damaged, variables);
    }
  }
}

}  // namespace
}  // namespace weft::jinja
