#include "parallel/shard/ownership.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

int replica_of(const ParameterSpec& parameter, const UnitHolder& holder) {
  return parameter.tensor_replicated ? holder.replica * holder.tensor_ranks + holder.tensor_rank : holder.replica;
}

// Rows [row_begin, row_begin + rows) of a parameter's box.
OwnedRange range_of(const ParameterSpec& parameter, std::int64_t row_begin, std::int64_t rows, const UnitHolder& holder,
                    int replica) {
  return {.parameter = parameter.name,
          .rank = holder.rank,
          .row_begin = parameter.row_begin + row_begin,
          .rows = rows,
          .column_begin = parameter.column_begin,
          .columns = parameter.columns,
          .group = holder.group,
          .optimizer = holder.optimizer_of ? holder.optimizer_of(parameter) : std::string(),
          .replica = replica};
}

// A box of rows and columns with one set of owners.
struct Strip {
  std::int64_t column_begin = 0, column_end = 0;
  std::vector<int> ranks;  // owners, ascending; a rank appears once for each range of its own
  bool operator==(const Strip&) const = default;
};

// Cuts columns [0, columns) at changes of ownership, within rows that all of `ranges` cover.
std::vector<Strip> strips_of(const std::vector<const OwnedRange*>& ranges, std::int64_t columns) {
  std::set<std::int64_t> cuts = {0, columns};
  for (const OwnedRange* range : ranges) {
    cuts.insert(std::clamp<std::int64_t>(range->column_begin, 0, columns));
    cuts.insert(std::clamp<std::int64_t>(range->column_begin + range->columns, 0, columns));
  }
  std::vector<Strip> strips;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    Strip strip{*cut, *std::next(cut), {}};
    for (const OwnedRange* range : ranges) {
      if (range->column_begin <= strip.column_begin && strip.column_end <= range->column_begin + range->columns) {
        strip.ranks.push_back(range->rank);
      }
    }
    std::ranges::sort(strip.ranks);
    strips.push_back(std::move(strip));
  }
  return strips;
}

class ReplicaSweep {
 public:
  ReplicaSweep(const GlobalParameter& parameter, int replica, std::vector<OwnershipFault>& faults)
      : parameter_(parameter), replica_(replica), faults_(faults) {}

  // Walks down the rows; the owners do not change between two cuts. Only ranges that cover the current rows are
  // examined, so the cost is that of sorting.
  void run(std::vector<const OwnedRange*> ranges) {
    std::set<std::int64_t> cuts = {0, parameter_.rows};
    for (const OwnedRange* range : ranges) {
      cuts.insert(std::clamp<std::int64_t>(range->row_begin, 0, parameter_.rows));
      cuts.insert(std::clamp<std::int64_t>(range->row_begin + range->rows, 0, parameter_.rows));
    }
    std::ranges::sort(ranges, {}, &OwnedRange::row_begin);
    std::vector<const OwnedRange*> here;
    auto next = ranges.begin();
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      const std::int64_t begin = *cut, end = *std::next(cut);
      std::erase_if(here, [&](const OwnedRange* range) { return range->row_begin + range->rows <= begin; });
      for (; next != ranges.end() && (*next)->row_begin <= begin; ++next) {
        if ((*next)->row_begin + (*next)->rows > begin) here.push_back(*next);
      }
      std::vector<Strip> wrong = strips_of(here, parameter_.columns);
      std::erase_if(wrong, [](const Strip& strip) { return strip.ranks.size() == 1; });
      // Consecutive rows with the same error are one fault.
      if (wrong != wrong_) report(begin);
      if (wrong != wrong_) wrong_begin_ = begin;
      wrong_ = std::move(wrong);
      wrong_end_ = end;
    }
    report(wrong_end_);
  }

 private:
  void report(std::int64_t end) {
    for (const Strip& strip : wrong_) {
      const bool whole_rows = strip.column_begin == 0 && strip.column_end == parameter_.columns;
      const std::string columns =
          whole_rows ? "" : fmt::format(", columns {} to {}", strip.column_begin, strip.column_end - 1);
      const std::string place = fmt::format("rows {} to {} of {}{} of {} (replica {})", wrong_begin_, end - 1,
                                            parameter_.rows, columns, parameter_.name, replica_);
      if (strip.ranks.empty()) {
        faults_.push_back({OwnershipSeam::unowned, place + " are owned by no rank"});
      } else {
        faults_.push_back({OwnershipSeam::doubled, fmt::format("{} are owned {} times, by {}", place,
                                                               strip.ranks.size(), ranks_text(strip.ranks))});
      }
    }
  }

  const GlobalParameter& parameter_;
  int replica_;
  std::vector<OwnershipFault>& faults_;
  std::vector<Strip> wrong_;  // of rows [wrong_begin_, wrong_end_)
  std::int64_t wrong_begin_ = 0, wrong_end_ = 0;
};

bool lies_inside(const OwnedRange& range, const GlobalParameter& parameter) {
  return range.row_begin >= 0 && range.rows >= 0 && range.row_begin + range.rows <= parameter.rows &&
         range.column_begin >= 0 && range.columns >= 0 && range.column_begin + range.columns <= parameter.columns &&
         range.replica >= 0 && range.replica < parameter.replicas;
}

void find_faults_of(const GlobalParameter& parameter, const std::vector<const OwnedRange*>& ranges,
                    std::vector<OwnershipFault>& faults) {
  std::map<std::string_view, std::vector<int>> ranks_by_optimizer;
  std::vector<std::vector<const OwnedRange*>> by_replica(parameter.replicas);
  for (const OwnedRange* range : ranges) {
    ranks_by_optimizer[range->optimizer].push_back(range->rank);
    if (lies_inside(*range, parameter)) {
      by_replica[range->replica].push_back(range);
      continue;
    }
    faults.push_back(
        {OwnershipSeam::outside,
         fmt::format("rank {} owns rows {} to {}, columns {} to {} of replica {} of {}, which has {} rows, {} columns "
                     "and {} replicas",
                     range->rank, range->row_begin, range->row_begin + range->rows - 1, range->column_begin,
                     range->column_begin + range->columns - 1, range->replica, parameter.name, parameter.rows,
                     parameter.columns, parameter.replicas)});
  }
  for (std::size_t replica = 0; replica < by_replica.size(); ++replica) {
    ReplicaSweep(parameter, static_cast<int>(replica), faults).run(std::move(by_replica[replica]));
  }
  if (ranks_by_optimizer.size() > 1) {
    std::vector<std::string> rules;
    for (auto& [optimizer, ranks] : ranks_by_optimizer) {
      std::ranges::sort(ranks);
      rules.push_back(fmt::format("{} on {}", optimizer, ranks_text(ranks)));
    }
    faults.push_back({OwnershipSeam::two_optimizers,
                      fmt::format("{} is stepped by {}", parameter.name, fmt::join(rules, " and by "))});
  }
}

}  // namespace

std::vector<OwnedRange> owned_ranges(const UnitLayout& layout, std::int64_t shard, const UnitHolder& holder) {
  std::vector<OwnedRange> ranges;
  for (const RowBlock& block : layout.rows_of_shard(shard)) {
    const ParameterSpec& parameter = layout.parameters[block.parameter];
    ranges.push_back(range_of(parameter, block.row_begin, block.rows, holder, replica_of(parameter, holder)));
  }
  return ranges;
}

std::vector<OwnedRange> owned_ranges(std::span<const ParameterSpec> replicated, const UnitHolder& holder) {
  std::vector<OwnedRange> ranges;
  for (const ParameterSpec& parameter : replicated) {
    ranges.push_back(range_of(parameter, 0, parameter.rows, holder, holder.replica));
  }
  return ranges;
}

std::vector<OwnershipFault> find_ownership_faults(std::span<const OwnedRange> table,
                                                  std::span<const GlobalParameter> parameters) {
  std::map<std::string_view, std::vector<const OwnedRange*>> by_parameter;
  for (const GlobalParameter& parameter : parameters) by_parameter[parameter.name];
  std::vector<OwnershipFault> faults;
  for (const OwnedRange& range : table) {
    const auto found = by_parameter.find(range.parameter);
    if (found != by_parameter.end()) {
      found->second.push_back(&range);
    } else {
      faults.push_back(
          {OwnershipSeam::outside,
           fmt::format("rank {} owns rows of {}, which is no parameter of the model", range.rank, range.parameter)});
    }
  }
  for (const GlobalParameter& parameter : parameters) {
    find_faults_of(parameter, by_parameter[parameter.name], faults);
  }
  return faults;
}

}  // namespace weft
