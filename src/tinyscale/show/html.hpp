#pragma once
// One self-contained page: words, tables and pictures in a single file without a script.
// Readable on a telephone, on paper, in light and in dark.

#include <algorithm>
#include <string>
#include <vector>

#include "tinyscale/base/text.hpp"
#include "tinyscale/show/svg.hpp"

namespace tinyscale {
namespace detail {

template <class Text>
inline std::string html_row(const std::vector<Text>& cells, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) {
    const bool number = tag[1] == 'd' && looks_like_number(cell);
    out += std::string("<") + tag + (number ? " class=\"n\">" : ">") + xml_escape(cell) + "</" +
           tag + ">";
  }
  return out + "</tr>\n";
}

inline std::string html_table(const Table& table) {
  table.check_rows();
  std::string out = "<div class=\"wide\"><table>\n";
  if (!table.title.empty()) {
    out += "<caption>" + xml_escape(table.title) + "</caption>\n";
  }
  out += "<thead>" + html_row(table.columns, "th") + "</thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += html_row(row, "td");
  }
  return out + "</tbody></table></div>\n";
}

inline const char* page_style() {
  return ":root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--soft:#57606a;--rule:#d8dee4;"
         "--tint:#f6f8fa}\n"
         "@media (prefers-color-scheme:dark){:root{--paper:#16191d;--ink:#e8e8e8;--soft:#a9b0b8;"
         "--rule:#31363d;--tint:#1f242a}}\n"
         "body{background:var(--paper);color:var(--ink);margin:0 auto;padding:2rem 1.2rem 4rem;"
         "max-width:76rem;font:1.05rem/1.6 system-ui,'Segoe UI',Helvetica,Arial,sans-serif}\n"
         "h1{font-size:1.9rem;line-height:1.2;margin:.5rem 0 1.2rem}\n"
         "h2{font-size:1.3rem;line-height:1.3;margin:2.4rem 0 .6rem;padding-top:.8rem;"
         "border-top:1px solid var(--rule)}\n"
         "p{margin:.7rem 0}.wide{overflow-x:auto;margin:1.1rem 0}\n"
         "p{max-width:48rem}pre{white-space:pre-wrap}\n"
         "table{border-collapse:collapse;font-size:.8rem;line-height:1.4}\n"
         "caption{text-align:left;font-weight:600;padding-bottom:.4rem}\n"
         "th,td{text-align:left;padding:.28rem .9rem .28rem 0;border-bottom:1px solid var(--rule);"
         "white-space:nowrap}\n"
         "th{color:var(--soft);font-weight:600}td.n{text-align:right;"
         "font-variant-numeric:tabular-nums}\n"
         "pre{background:var(--tint);padding:.9rem 1rem;border-radius:6px;overflow-x:auto;"
         "font:.85rem/1.5 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}\n"
         "figure{margin:1.4rem 0}svg{max-width:100%;height:auto}\n";
}

}  // namespace detail

class HtmlPage {
 public:
  explicit HtmlPage(const std::string& title) : title_(title) {}

  void heading(const std::string& words) {
    body_ += "<h2>" + detail::xml_escape(words) + "</h2>\n";
  }
  void text(const std::string& words) {  // an empty line starts a new paragraph
    std::size_t begin = 0;
    while (begin <= words.size()) {
      const std::size_t end = std::min(words.find("\n\n", begin), words.size());
      if (end > begin) {
        body_ += "<p>" + detail::xml_escape(words.substr(begin, end - begin)) + "</p>\n";
      }
      begin = end + 2;
    }
  }
  void code(const std::string& words) { body_ += "<pre>" + detail::xml_escape(words) + "</pre>\n"; }
  void table(const Table& table) { body_ += detail::html_table(table); }
  void picture(const Svg& picture) { body_ += "<figure>" + picture.markup() + "</figure>\n"; }

  std::string html() const {
    const std::string title = detail::xml_escape(title_);
    return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           title + "</title>\n<style>\n" + detail::page_style() +
           "</style>\n</head>\n<body>\n<h1>" + title + "</h1>\n" + body_ + "</body>\n</html>\n";
  }

  // Throws Error when the path cannot be written; an old page stays whole.
  void save(const std::string& path) const { detail::save_text("HtmlPage::save", path, html()); }

 private:
  std::string title_;
  std::string body_;
};

}  // namespace tinyscale
