// The sentences of comments in the sources, and of the documents: at most 25 words each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/documents.h"
#include "tests/tools/floors.h"

namespace weft {
namespace {

constexpr std::ptrdiff_t most_words = 25;

struct CommentLine {
  std::size_t number = 0, column = 0;
  bool alone = false;  // no code stands in front of it
  std::string text = {};
};

struct Sentence {
  std::size_t line = 0;
  std::string text = {};
};

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Marks inside literals begin no comment: the code behind them is not blank. In scripts only whole lines count.
std::vector<CommentLine> comment_lines(const std::string& path, const std::string& text) {
  const bool script = path.ends_with(".sh") || path.ends_with(".py");
  const std::string mark = script ? "#" : "//";
  const std::vector<std::string> lines = split_lines(text), code = split_lines(script ? text : code_of(text));
  std::vector<CommentLine> comments;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t begin = std::min(lines[i].find_first_not_of(' '), lines[i].size());
    for (std::size_t at = lines[i].find(mark); at != std::string::npos; at = lines[i].find(mark, at + 1)) {
      const bool alone = at == begin;
      const bool ends_code = code[i].find_first_not_of(' ', at) == std::string::npos;
      if (script ? !alone || lines[i].starts_with("#!") : !ends_code) continue;
      comments.push_back({i + 1, at, alone, lines[i].substr(at + mark.size())});
      break;
    }
  }
  return comments;
}

// The prose of a document: no headings, tables and blocks of code.
std::vector<CommentLine> document_lines(const std::string& text) {
  static const std::regex other(R"(( {4}|[|#<]).*)");
  std::vector<CommentLine> prose;
  bool fenced = false;
  const std::vector<std::string> lines = split_lines(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool fence = lines[i].starts_with("```");
    fenced = fenced != fence;
    const bool apart = fence || fenced || std::regex_match(lines[i], other);
    prose.push_back({i + 1, 0, true, apart ? "" : lines[i]});
  }
  return prose;
}

bool ends_sentence(const std::string& word) {
  static const std::regex end(R"(.*[.!?]["')\]`]*)"), abbreviation(R"((.*\W)?(e\.g|i\.e|cf|vs|al|etc|Eq|Fig)\.)");
  return !word.ends_with("...") && std::regex_match(word, end) && !std::regex_match(word, abbreviation);
}

// A sentence ends with its mark, with the comment, and in front of an item of a list. It also ends in front of an
// empty or indented line (formulas, tables, drawings).
std::vector<Sentence> sentences_of(const std::vector<CommentLine>& lines) {
  static const std::regex set_apart(R"(\s{3,}.*|\s*)"), item(R"(\s*([-*] |\d+\. |\|).*)");
  std::vector<Sentence> sentences;
  Sentence open;
  const auto end = [&] {
    if (!open.text.empty()) sentences.push_back(std::exchange(open, {}));
  };
  CommentLine before;
  for (const CommentLine& line : lines) {
    const bool goes_on = line.alone && line.number == before.number + 1 && line.column == before.column;
    const bool apart = std::regex_match(line.text, set_apart);
    if (!goes_on || apart || std::regex_match(line.text, item)) end();
    before = line;
    std::istringstream words(apart ? "" : line.text);
    for (std::string word; words >> word;) {
      if (open.text.empty()) open.line = line.number;
      open.text += (open.text.empty() ? "" : " ") + word;
      if (ends_sentence(word)) end();
    }
  }
  end();
  return sentences;
}

// Code in backquotes, a quoted text, a shape in brackets and a formula are one word each.
std::ptrdiff_t count_words(std::string sentence) {
  static const std::regex quoted(R"(`[^`]*`|"[^"]*"|\[[^\]]*\])");
  static const std::regex operation(R"((\S) ([-+*/=<>@^%|&x]|[-+*/<>=!]=|->|<<|>>|&&|\|\|) (?=\S))");
  sentence = std::regex_replace(std::regex_replace(sentence, quoted, "text"), operation, "$1");
  std::istringstream words(sentence);
  std::ptrdiff_t count = 0;
  for (std::string word; words >> word;) {
    count += std::ranges::any_of(word, [](unsigned char c) { return std::isalnum(c) != 0; });
  }
  return count;
}

TEST(Words, SentencesOfCommentsAreShort) {
  std::size_t sentences = 0;
  for (const char* floor : {"layers", "parallel", "tests", "tools", "trainer"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(documents_root / floor)) {
      const std::string path = std::filesystem::relative(entry.path(), documents_root).string();
      const bool source = std::regex_match(path, std::regex(R"(.*\.(h|cpp|cuh?|sh|py))"));
      if (!source) continue;
      for (const Sentence& sentence : sentences_of(comment_lines(path, text_of_document(entry.path())))) {
        ++sentences;
        const std::ptrdiff_t words = count_words(sentence.text);
        EXPECT_LE(words, most_words) << path << ":" << sentence.line << ": " << sentence.text;
      }
    }
  }
  EXPECT_GT(sentences, 14000u);
}

TEST(Words, SentencesOfDocumentsAreShort) {
  std::size_t sentences = 0;
  std::vector<std::filesystem::path> documents;
  for (const char* folder : {"", "docs"}) {
    for (const auto& entry : std::filesystem::directory_iterator(documents_root / folder)) {
      if (entry.path().extension() == ".md") documents.push_back(entry.path());
    }
  }
  for (const auto& path : documents) {
    for (const Sentence& sentence : sentences_of(document_lines(text_of_document(path)))) {
      ++sentences;
      const std::ptrdiff_t words = count_words(sentence.text);
      EXPECT_LE(words, most_words) << path.filename() << ":" << sentence.line << ": " << sentence.text;
    }
  }
  EXPECT_GT(sentences, 1500u);
}

TEST(WordsCheck, FindsSentencesWithTheirLines) {
  const std::string source =
      "// One of two\n// lines. Another\n//\n//   a formula in a line of its own\n// A third\n"
      "int i = 0;  // beside code\n            // and on\nconst char* s = \"// none\";\n// At the margin, e.g. here "
      "...\n";
  std::vector<std::string> found;
  for (const Sentence& sentence : sentences_of(comment_lines("a.cpp", source))) {
    found.push_back(std::to_string(sentence.line) + " " + sentence.text);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"1 One of two lines.", "2 Another", "5 A third", "6 beside code and on",
                                             "9 At the margin, e.g. here ..."}));
  EXPECT_EQ(sentences_of(comment_lines("a.sh", "#!/bin/sh\n# Says\n# so. Twice.\necho '# none'\n")).size(), 2u);
}

TEST(WordsCheck, CountsFormulasAndCodeOnce) {
  EXPECT_EQ(count_words("y [rows, columns] = x: all of `first, then the rest`, or \"some of it\"."), 7);
  EXPECT_EQ(count_words("Twice n - 1 times, for 8 ranks"), 6);
}

}  // namespace
}  // namespace weft
