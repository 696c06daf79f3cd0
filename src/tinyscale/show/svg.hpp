#pragma once
// A picture as text: shapes and words in the coordinates of an SVG file, x to the right, y down.
// Self-contained (no script, no outside style), readable in light and in dark surroundings.
// Colours: Okabe and Ito's eight, told apart with any colour vision; a series also has its own
// dash pattern or marker.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/unicode_classes.hpp"

namespace tinyscale {

// A finished picture. `text` says in words what is drawn, for terminals and screen readers.
struct Svg {
  double width = 0, height = 0;  // in pixels
  std::string text;
  std::string body;  // the elements between <svg> and </svg>

  std::string markup() const;                // the whole file
  void save(const std::string& path) const;  // throws Error; an old file stays whole
};

namespace detail {

// Text as XML character data: the five marks escaped, control characters replaced by a space, what
// is no UTF-8 or no character of XML by U+FFFD.
inline std::string xml_escape(const std::string& text) {
  std::string out;
  for (std::size_t at = 0, size = 1; at < text.size(); at += size) {
    const CodePoint point = code_point(text.data(), at, text.size());
    size = point.size;
    if (point.code >= 0x80) {
      const bool none = point.code == no_code_point || point.code == 0xFFFE || point.code == 0xFFFF;
      out += none ? "\xEF\xBF\xBD" : text.substr(at, size);
      continue;
    }
    const char c = text[at];
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: {
        const bool control = static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t';
        out += control ? ' ' : c;
      }
    }
  }
  return out;
}

// A failure leaves the old file as it was.
inline void save_text(const char* function, const std::string& path, const std::string& text) {
  SaveFile file(function, path);
  file.write(text.data(), text.size());
  file.finish();
}

// A coordinate with at most two decimals: 12, 12.5, 12.25.
inline std::string coordinate(double value) {
  std::string text = printed('f', 2, is_finite(value) ? value : 0.0);
  text.erase(text.find_last_not_of('0') + 1);
  if (!text.empty() && text.back() == '.') {
    text.pop_back();
  }
  return text;
}

inline std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + coordinate(value) + "\"";
}

inline double drawn_width(const std::string& text, double size) {  // a wide face's average letter
  const auto wide = static_cast<double>(std::count(text.begin(), text.end(), '+'));
  return 0.6 * size * (static_cast<double>(text_width(text)) + 0.5 * wide);
}

inline std::string shorten(const std::string& text, std::size_t most) {
  if (text_width(text) <= most || most < 4) {
    return text;
  }
  std::string out;
  std::size_t letters = 0;
  for (const char c : text) {
    letters += (static_cast<unsigned char>(c) & 0xC0u) != 0x80u ? 1u : 0u;
    if (letters > most - 3) {
      break;
    }
    out += c;
  }
  return out + "...";
}

// The colour of series i in light surroundings; class "tsN" brightens it in dark ones.
inline const char* series_color(std::size_t i) {
  static const char* const colors[] = {"#0072b2", "#d55e00", "#007f5f", "#a8477e",
                                       "#b07800", "#2b83b5", "#666666"};
  return colors[i % 7];
}

inline const char* series_dash(std::size_t i) {
  static const char* const dashes[] = {"", "7 4", "2 3", "9 3 2 3", "12 5", "4 2", "1 4"};
  return dashes[i % 7];
}

inline const char* dark_style() {
  return "<style>@media (prefers-color-scheme: dark){"
         ".ts-paper{fill:#16191d}.ts-ink{fill:#e8e8e8}.ts-soft{fill:#a9b0b8}"
         ".ts-grid{stroke:#31363d}.ts-axis{stroke:#868e96}"
         ".ts-empty{fill:#22272d}"
         ".ts0{stroke:#56b4e9}.ts1{stroke:#ff8a3d}.ts2{stroke:#2fc79a}.ts3{stroke:#e59bc8}"
         ".ts4{stroke:#f0b429}.ts5{stroke:#9ad2f2}.ts6{stroke:#b5b5b5}"
         ".tf0{fill:#56b4e9}.tf1{fill:#ff8a3d}.tf2{fill:#2fc79a}.tf3{fill:#e59bc8}"
         ".tf4{fill:#f0b429}.tf5{fill:#9ad2f2}.tf6{fill:#b5b5b5}}</style>";
}

enum class Anchor { start, middle, end };

// The pen: each call appends one element.
class Canvas {
 public:
  Canvas(double width, double height) {
    picture_.width = width;
    picture_.height = height;
    picture_.body = "<rect class=\"ts-paper\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  }

  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    add("<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
        attribute("y2", y2) + " " + style + "/>");
  }

  void rect(double x, double y, double width, double height, const std::string& style) {
    add("<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) +
        attribute("height", height) + " " + style + "/>");
  }

  void circle(double x, double y, double radius, const std::string& style) {
    add("<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", radius) + " " + style +
        "/>");
  }

  void polyline(const std::vector<double>& x, const std::vector<double>& y, std::size_t series,
                double stroke_width) {
    path(x, y, stroke(series, stroke_width));
  }
  void path(const std::vector<double>& x, const std::vector<double>& y, const std::string& style) {
    add("<polyline points=\"" + points(x, y) + "\" fill=\"none\" stroke-linejoin=\"round\" " +
        style + "/>");
  }
  void area(const std::vector<double>& x, const std::vector<double>& y, const std::string& style) {
    add("<polygon points=\"" + points(x, y) + "\" " + style + "/>");
  }

  void label(double x, double y, const std::string& words, double size, Anchor anchor,
             const std::string& style = ink()) {
    const char* const anchors[] = {"start", "middle", "end"};
    add("<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", size) +
        " text-anchor=\"" + anchors[static_cast<int>(anchor)] + "\" " + style + ">" +
        xml_escape(words) + "</text>");
  }

  // The picture's title, as much as its width holds.
  void heading(const std::string& words) {
    label(20, 28, shorten(words, static_cast<std::size_t>(std::max(4.0, picture_.width / 9.6 - 2))),
          16, Anchor::start, bold());
  }

  void label_upward(double x, double y, const std::string& words, double size) {
    const std::string turn =
        "transform=\"rotate(-90 " + coordinate(x) + " " + coordinate(y) + ")\" ";
    label(x, y, words, size, Anchor::middle, turn + ink());
  }

  static std::string ink() { return "class=\"ts-ink\" fill=\"#1f2328\""; }
  static std::string bold() { return ink() + " font-weight=\"600\""; }
  static std::string soft() { return "class=\"ts-soft\" fill=\"#57606a\""; }
  static std::string grid() { return "class=\"ts-grid\" stroke=\"#e3e6ea\""; }
  static std::string axis() { return "class=\"ts-axis\" stroke=\"#6e7781\""; }

  static std::string stroke(std::size_t series, double width) {
    const std::string dash = series_dash(series);
    return " class=\"ts" + std::to_string(series % 7) + "\" stroke=\"" + series_color(series) +
           "\"" + attribute("stroke-width", width) +
           (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"");
  }

  static std::string fill(std::size_t series) {
    return " class=\"tf" + std::to_string(series % 7) + "\" fill=\"" + series_color(series) + "\"";
  }

  Svg finish(const std::string& text) {
    picture_.text = text;
    return picture_;
  }

 private:
  static std::string points(const std::vector<double>& x, const std::vector<double>& y) {
    std::string out;
    for (std::size_t i = 0; i < x.size(); ++i) {
      out += (i == 0 ? "" : " ") + coordinate(x[i]) + "," + coordinate(y[i]);
    }
    return out;
  }
  void add(const std::string& element) { picture_.body += element + "\n"; }
  Svg picture_;
};

}  // namespace detail

inline std::string Svg::markup() const {
  const std::string w = detail::coordinate(width), h = detail::coordinate(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + w + " " + h + "\" width=\"" +
         w + "\" height=\"" + h + "\" role=\"img\" font-family=\"" +
         "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n<title>" +
         detail::xml_escape(text) + "</title>\n" + detail::dark_style() + "\n" + body + "</svg>\n";
}

inline void Svg::save(const std::string& path) const {
  detail::check_ending("Svg::save", path, {".png", ".jpg", ".jpeg", ".gif", ".pdf"}, "SVG",
                       ".svg is right");
  detail::save_text("Svg::save", path, markup());
}

// In words; markup() is the picture itself.
inline std::ostream& operator<<(std::ostream& out, const Svg& picture) {
  return out << picture.text << "\n";
}

}  // namespace tinyscale
