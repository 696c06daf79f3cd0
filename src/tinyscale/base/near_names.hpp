#pragma once
// Names near one that nobody knows: what a user meant by "h10" or "lama3-8b".
//   distance = letters added, dropped, changed or swapped with the next; capitals, "-_. " aside
// Near is a distance of at most a third of the letters, or a name that holds the other whole.

#include <cstddef>  // std::size_t
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/order.hpp"

namespace tinyscale {
namespace detail {

// Small letters, without what people set between words.
inline std::string plain_letters(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c != '-' && c != '_' && c != '.' && c != ' ') {
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return out;
}

// The optimal string alignment distance; cost: the product of the lengths.
inline std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      const std::size_t one_more = (last[j] < row[j - 1] ? last[j] : row[j - 1]) + 1;
      row[j] = change < one_more ? change : one_more;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          before[j - 2] + 1 < row[j]) {
        row[j] = before[j - 2] + 1;
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// How far a name is from what was asked for; a negative number when it is not near. A name that
// begins with the other is nearer than one that holds it further inside.
inline double name_distance(const std::string& asked, const std::string& name) {
  const std::string a = plain_letters(asked), b = plain_letters(name);
  const bool a_shorter = a.size() <= b.size();
  const std::string& part = a_shorter ? a : b;
  const std::size_t at = (a_shorter ? b : a).find(part);
  if (at != std::string::npos && part.size() >= (at == 0 ? 2U : 3U)) {
    return a == b ? 0 : at == 0 ? 0.5 : 0.75;
  }
  if (a.size() >= 5 && b.size() > a.size() &&  // all but a letter of what the name begins with
      edit_distance(a, b.substr(0, a.size())) <= 1) {
    return 1.5;
  }
  const std::size_t letters = a.size() > b.size() ? a.size() : b.size();
  const std::size_t distance = edit_distance(a, b);
  const std::size_t most = letters < 6 ? 1 : letters / 3;
  return distance <= most && distance < part.size() ? static_cast<double>(distance) : -1;
}

// Those of `names` that are near, the nearest first, at most `most`.
inline std::vector<std::string> near_names(const std::string& asked,
                                           const std::vector<std::string>& names,
                                           std::size_t most = 5) {
  std::vector<double> distances;
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double distance = name_distance(asked, names[i]);
    if (distance >= 0) {
      distances.push_back(distance);
      found.push_back(i);
    }
  }
  std::vector<std::string> out;
  for (const std::size_t i : stable_order(distances)) {
    if (out.size() < most) {
      out.push_back(names[found[i]]);
    }
  }
  return out;
}

inline std::string joined_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

// The end of an error message: "near it are a, b", or all names when none is near.
inline std::string near_text(const std::string& asked, const std::vector<std::string>& names) {
  const std::vector<std::string> alike = near_names(asked, names);
  return alike.empty()
             ? "the names are " + joined_names(names)
             : "near it " + std::string(alike.size() == 1 ? "is " : "are ") + joined_names(alike);
}

}  // namespace detail
}  // namespace tinyscale
