#pragma once
// What a pre-tokenizer asks of a character: a letter (\p{L}), a number (\p{N}), white space (\s)
// or none of these. Unicode 17.0, each class as its runs of code points: not in it, in it, not in
// it, ... A run's length in digits of 5 bits, the lowest first, 32 on all but the last; a digit is
// the character '0' + digit, with p for the backslash and q for the question mark.

#include <cstdint>  // uint8_t
#include <vector>   // vector

namespace tinyscale {
namespace detail {

enum class CharacterClass : std::uint8_t { other, letter, number, space, sign };

inline const char* letter_runs() {
  return "Q2J6J_11:1415G1O1Z>4<>57111Q451224116113111D1c21[48V51V1216Y1W2K44]1[1S121S311q272:321"
         "@11NMi2;1HQ192415F419131GI7;5H17@Z1j1f131B17:q@48222F17113431@1=213>2:186422F17121212O"
         "411C3@9131F17121531B1q2G1;8222F17121531N213q1A116331432111232333<F1d18131G1@31J31222N1"
         "48131G1:1531N312q2A9131Y121@15383H65B3H191127j1`112<7j1211151H111:12912511E4P11o181T1K"
         "5c3[1D1@6443132734=<1AV111512[11]:142711142Y1142Q1142711142q1i1142S2U1@@f2263pC2A1J5[2"
         "687B=C>B>=13qd1S1141S2i2752R1115V2:Oa1N25;p14Jf1G9e1b21m2_1A8f1N=2:p1JT1Y13:T12;5[123Y"
         "141612315P6P2f8262V126281111111O2e11711331734264=5317d31=1@=U31412:1135611111141;24554"
         "1d12kc2U76432<V111512h171@G9717171717171717`21e>2Z15524f2631j2145[11n2AP1`1@P@P^6P2]dE"
         "S2^12]83@:2D_1@O2V2a192W32b2DA13141GMd1>b1n163112;L:GIM7_1L1@51::51Y1G318DG313b1113225"
         "2111H32;73<6262697171[11>6c3MTm:<G4a1TX8^;2Z3V17<5511:1=151112121p3Q1[;BP22f1X1<d351W4"
         "T1J6J;i236262623S1<1J1C121q2>R1k3U<M3a1_1P1=D186V1:N2T148`1n4BT14T14X18d1<;1q17121;1q1"
         "7123d1<g99F:8H61Z119U26211p112312G:G9OQ2C12:F:J6JV1h162P21q4131MZ1M3MS181LKf1:F:C=B^3Y"
         "2g1c1=c1=T1V1L9Gj7Z162@6h1M:18FZ1B^1EKG<e1i1221=]1P1IJT1M1218S131<`1>4E111S1B1IC2o1711"
         "141q1:7_1V18222F17121531B1<5N:11211V111I111p1e1B4D3N`1D211h5_1Y14T1`1D1k1[1=1W2KU17i5p"
         "1d3P2O82128121Hq111n282W1@111L1:X171E1;^1C1BY2W6Q1O91U1A1a1N`37121V1E1I6121P1>1Gp1T8Cq"
         "11=1R1l31_2jLV7T6pb2Q3q`Q1A6Ikl35WBie6NRg1iA7OA_2ANB`1@4OE5C`=]1c6P2P1I2Ip1[251R2=P221"
         "1>2<fV7Y1P1Q3c3m_8417121S9q1M321>48p<TX2[35=397:Vk5e21W2122122241<11171Q21428171L14151"
         "1371d:2I1I1O1I1O1I1O1I1O1I18di1O66U8n1b4]1:7@1Q:NBp1TqLT7N21_6O1312172592P7714121q1U6k"
         "1T271dU141K1211211:141111614111111312112111111111121124171414111:1A53151ATZ4PgY1P1nX42"
         "^d52aY7q^CR]2n@R_1[j45ZY8";
}

inline const char* number_runs() {
  return "`1:h325123Q]1:V4:V6:l<:f3:46p3:f3:f3:26^3=c3:87W3:X377C]3:P3:f3:V2Dp8:V2:_FDaK3_7:6:F:"
         "p9:P4;U5:6:f5:f2:V4:6:fP11366:V6c125fFl1^2FfCNY[11YH1I9>3g:4Z4:N81qP1:W1qPkL:l5:P:6j4:"
         "V1:V6:F:f2:f<:fhD:]q]1<i1A2e:KT14M181V45Z6:^M8I7W19[25F6P522@2^1P29d12N3[25X38H8Y17Z:6"
         "`1:6:f8On4:Z14`37V4NP4:l1:`4:7Dk7:f::f3:f;:V3:6Dp2<T=Cm2:fD:f2MS7:V2:f1:V;:V3E[Q1_3QVq"
         ":VY2:f2:V4:17^@:V8Gm:3iWG:V^1D<Dp3IeR1b1PZ2:V=:fq:g7:pF9P4:gHk11314p2]11qRN=Sg2:";
}

// \p{P} and $ + < = > ^ ~ |, which other classes do not have.
inline const char* sign_runs() {
  return "Q1q:7J5K4R115131:23131nE181b>6Y12c11112121p12D212=113Z24V31[1>Y73f1qO1U82:1p41h31i31V<"
         "1<1_;1j21:2X5q11U14W21Z2542_36[51TC9g41]C1p12^23W22m4313U1;i92h62P4716P52:7L3l34k15n12"
         "P28;1lIH8D1=1<N2>2iC4M2mQ1>_22O:c<Fo14P12kG412`31_4_11P12<S=34:2<@1<1R31j21RPM2]83S31:"
         "1c36l;4f22X1311a12_11Q3=@2l34n32@2i71bZD2`6:FS11>114112e431614:232J311K11117j<3lD1`11n"
         "<1WG1W61O1`89V11`37R27i24a>1n91R11T45p14m57]3214n34`12_2441=113h26[31Z9212b35:211X31j7"
         "GY33L=p21R43l71X83k41l28c2315m2:g61o25Z12UD2Z2=_51`S15lk22kc>2U41Q2581XA3W94W:1lUC1W_7"
         "5ck21nJ2";
}

constexpr std::uint32_t classified_end = 0x34000;  // from here on there is none of these

// The number that begins here; `digits` then stands behind it.
[[gnu::noinline]] inline std::uint32_t next_number(const char*& digits) {
  std::uint32_t number = 0, digit = 32;
  for (int shift = 0; digit >= 32; shift += 5) {
    const char c = *digits == 'p' ? '\\' : *digits == 'q' ? '\x3F' : *digits;
    digit = static_cast<std::uint32_t>(c - '0');
    number += (digit & 31U) << shift;
    ++digits;
  }
  return number;
}

// Gives the code points of the runs their class.
inline void fill_runs(const char* runs, CharacterClass which, std::vector<CharacterClass>& of) {
  std::uint32_t code = 0;
  for (bool inside = false; *runs != '\0'; inside = !inside) {
    const std::uint32_t length = next_number(runs);
    for (std::uint32_t i = 0; inside && i < length; ++i) {
      of[code + i] = which;
    }
    code += length;
  }
}

// The class of every code point below classified_end.
struct CharacterClasses {
  std::vector<CharacterClass> of;

  CharacterClasses() : of(classified_end, CharacterClass::other) {
    fill_runs(letter_runs(), CharacterClass::letter, of);
    fill_runs(number_runs(), CharacterClass::number, of);
    for (const std::uint32_t code :
         {0x20U, 0x85U, 0xA0U, 0x1680U, 0x2028U, 0x2029U, 0x202FU, 0x205FU, 0x3000U}) {
      of[code] = CharacterClass::space;
    }
    for (std::uint32_t code = 0; code < 11; ++code) {
      of[0x2000 + code] = CharacterClass::space;
      of[9 + code % 5] = CharacterClass::space;
    }
  }
};

inline CharacterClass character_class(std::uint32_t code) {
  static const CharacterClasses classes;
  return code < classified_end ? classes.of[code] : CharacterClass::other;
}

// Punctuation and the mathematical signs of ASCII: of class other to all else.
inline bool is_sign(std::uint32_t code) {
  static const std::vector<CharacterClass> signs = [] {
    std::vector<CharacterClass> of(classified_end, CharacterClass::other);
    fill_runs(sign_runs(), CharacterClass::sign, of);
    return of;
  }();
  return code < classified_end && signs[code] == CharacterClass::sign;
}

}  // namespace detail
}  // namespace tinyscale
