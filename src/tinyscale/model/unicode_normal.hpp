#pragma once
// Unicode's normal forms: an accented letter as one character where there is one (NFC), or
// decomposed (NFD). Characters are decomposed, marks behind a starter ordered by their combining
// class, and for NFC pairs composed again. Unicode 14.0, its tables as tools/unicode_normal.py
// prints them; Hangul by arithmetic. https://www.unicode.org/reports/tr15/

#include <cstddef>  // size_t
#include <cstdint>  // uint32_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/byte_pair_encoding.hpp"
#include "tinyscale/model/unicode_classes.hpp"

namespace tinyscale {
namespace detail {

// What characters decompose into, in ascending order: 3 times the step from the last one, plus 0
// for a pair, 1 for a single character, 2 for a pair that NFC does not compose; then of each part
// the step n from that part of the last pair or single character, as 2 n or, below 0, -2 n - 1.
inline const char* decomposition_digits() {
  return "PBR4P`130230230230:30464j134]230230230<38q30230230<6:932530230230230:9<q30230230<38=9@13"
         "0230230230:30464j134]230230230<38q30230230<6:932530230230230:9<q30230230<38=60>3_373P203"
         "o143P203o1T23P203k1]23P203o123P203o1:3P203o1:3P203m103P209m1q3P203o143P203o123P203o1R23P"
         "203o1g13P203k1C3P203o183P203o123P203o1P23P203m1Y23P209m123P203o123P203o143P203o1T23P203o"
         "1Q2<293P203m1Z23P206m1[23P203o1p23P203o1e13P20qk1E3P203o1p23P203o1e13P20<m1q3P203o143P20"
         "3o1:3P209i1C3P203o1p23P203o1e13P203m1E3P203o123P203o1Z23P203o1e13P203m1f13P203o1e13P209m"
         "1A3P203o123P203o143P203o183P203o123P203o1j13P203k1[23P203k103P203o1<32=3P203o1<3P203o1:3"
         "P20V3e2N3P20Z1c103P20g2W3M3P203_103P203c103P203c103P203^6q3P203o153P203o1F3P203o1G3P206_"
         "383P203TD03203QF03P209m9@3P203g103P203g1h13P203fGW23203W3@3f=03_R10<U2E3P209a113P203^523"
         "P203m103P203K03P203];L3P203o143P203g133P203o143P203g133P203o143P203c133P203o143P203i133P"
         "203o143P203i133P203o143P203S2Z13P203m103P209g2c13P20E]293P203g1P23P203R7U23P203Q203P203["
         ":63P203nK53203[M03P20XIP`1427T15nX15a4c5OkW1EoU103b^104h73803403406<06<03803R20^2Q3>3H03"
         "H=3803403403T10^2S1>3H03;=3<0380qB030>T4V4q30@63=<I>qX1=3313F<Q1E0P3P20U25;30@63=<V2>qg1"
         "=3313F<X2R3B320n6m5A3P20Z1[203P203o143P209e133P209V:43203U<03P203m103P209m173P203o183P20"
         "3c103P209d:03203g;03P203c273P203o183P203o163P203g153P209g103P20kKhMfd13023R203Q223V21^>f"
         "806W10c1R10Rh1pU1`^1H@0960^3k105205205:05:05205B0580T:`9T830b1b1[2e15208J0n7V8P8;<0[3S20"
         "5205:0;N0nEhAdA90_130b1b1[2e1520U5P7f9R5X3a132031b1d;P8n7X;b7n7E>030260W138V1m;h7b632031"
         "b1Z=V9V760:36935Z1aQ1bF`MP1D0A:0A:0A:0Y1e13P1R3U48045R4H820MS40h1R2^3P1D0A:0A:0A:0Y1e13W"
         ":Z9b7PU8P^5^`5640640640640<80k3b20640940320660gQ2Q`=oP<3P203m1k13P203o1h13P203o1L3P203Z6"
         "o23P203U:<3P203o1h13P203o1L3P203o1C3P203o1<3P203l:i23203123203k<h23P203o163P203VLc23203U"
         "N23P203m153P203m163P203o1h13P203o1e13P203o1n13P203o1>3P203m143P203p6m23P203W:03P203o1T23"
         "P203o1L3P203m1K3P203dl>m13203en>j23P203o173P203m1g23P203o1<3P203o1h13P203m1g13P203o1h13P"
         "203o1L3P203o173P203^6g23P203o1>3P203^5q3203123203iq03P203o1<3P203k103P203o1h13P203`n>m13"
         "203aPqj23P203m1c23P203o1h13P203^>g13203:03203R`>03203mPq03P203o1h13P203o1L3P203o173P203m"
         "1A3P203o1H3P203o153P203Vqg232032>3203YA93P203o1P23P203m1U23P203o123P203o1>3P203o113P203o"
         "1h13P203m1g13P203o123P203m113P203m193P203o1R23P203o1L3P203S103Ha23643406p@5qkCh13P203o1c"
         "13P203R6q3P203o113P203o1B3P203o1;3P203lk>13203mi>132031132031B32031;3203ji>63203gUqj13P2"
         "03o1c13P203o1;3P203Z633P203o113P203o1B3P203o1;3P203ll>13203oVq>3P203o1d13P203c103P203o1c"
         "13P203Z6q3P203o113P203o1B3P203o1;3P203`m>13203ib>132031132031B32031;32031P23203gD03P203o"
         "1c13P203dCq32031132031B32031;32031P23203]EU23P203o1V23P203o1c13P203o1;3P20E`c1P13023nd=W"
         "132031232031R43203of=m23023^g=W132031232031R43203We=m23023fe=W13203123209gg=T13023Vh=W13"
         "203123209Sf=T13023bf=W132031232031R43203ch=m23023Ri=W132031232031R43203of=m23023^g=W1320"
         "31232031R43203_i=m23023ni=W132031232031R43203cg=m23023Rh=W13203123209Sj=T13023bj=W132031"
         "23209Wh=T13023fh=W132031232031R43206gj=k26Xk=W160260R43oh=m23023^i=W132031232031R43203_k"
         "=m23023nk=W132031232031R43203_k=S44Z_13804234042340423<04j13<042380429^c=Z43203203203203"
         "203203203203203203203203203203203R103203203203203203203203203203203203203203203203R30320"
         "3203203203203203203203203203203203203203203kk=m33033nk=R43mk=03906:53ZP>63YR>m33033074_4"
         "30Z47V39a^153hpq63ik=03A06B53nP>63QS>Y44Q33404230Z43`R>Y430230R43[P>g33033R174>9Q1T43R10"
         "3Q3g33033074;6ZV>030230R43aS>g33033<74p23CV130238l23<03[2g33033074S237X13a_1W14A4Yb19X]q"
         "Z43Uk=03:06953jR>63]U>Y44hb13D04630Z44e]1:ldq42`KcU>=ke14d7]:^n>I340i140m2h30380330o4R30"
         "q:0960X2`10640a2^109>0940660U2ePA06XRA0Q1W103QQA03403pRA03209J0320960320E603209>03209603"
         "20Y3f103<0320340c4m203203X10320EP20320320320e5VdG42hh5`R40`R4lf2RfF640640640640640640640"
         "640640640640960640640E>0302661302661302661302661302U2Y31N^50Z1L0640640640640640640640640"
         "640640640960640640E>0302661302661302661302661302U2Y319b40320320320<F0WPf4nS^14WeB4pmC4SP"
         "14]o>4mY@4Vk24^kU1404eTS14PXL4cTN4Rl14lZ44VW:4ha44d[34fG4lC4^i34iXC4ba14lk14Z`14nU84jb64"
         "^X44mfU14V_24nh;4^a34TQ:4Ro;4kpP14fY94Tn:4^i14eYC4n`q4^T34YeD4jT44VU34Ti24Tm>4_dP14RS14^"
         "B4pn84nP34jc34^]24da44ZP34p54Vi34Vd44jS24fX14kfB4Vq4RR24bR34fc74fg54aj94]oH4ZR34he>4lQ24"
         "gQ74`V34`o94ZS54mQO4dh14Rk64^l14ZC4PR74`@4XQ<4agQ14bkF4mZG4O4PUD4Tj14VS34XX94Y_54Q[D4Vc3"
         "4h_@4YpN4lj64fR24Zg94bN4aUA4XnB4gcD4dn74gi84n[q4We34dj;4meD4fY24VZq4`d64RV34o^q4poA4_bA4"
         "ch44^nq4Ydq4Zl84][C4f[14P64`[;4pV:4`h24VV44j_34c]O4jD4Rc24bg24b]34bS54hb44VX>4j[24jR24^3"
         "4USV14fR:4R[24fnA4k^H4ha14P74dY14bX54pR14Pd14Rd24dR24fW14^[74_S54Zc54^b14UcP14h84dQ14fP>"
         "4do;4`N4QnE4hB4ph14VS44PY84ap44QYB4ZQ44l^24VM4TV14pi94^;4Rc54h:4ln84Tp24T54P=4iXT14VRE4p"
         "P<4X`24]mJ4eU94XU14Xa54R54de44bV24hl34XW24d[74Ph54Ra74Y`L4pjG4YjQ14T_:4`74ld24fE4jf24PE4"
         "Ta14ZZ24ld=4Q_S14Rp84dTJ4iTS14l^64R]84Pd@4miG4bK4V]34Pg54n_A4iUR14pN4pU44lj44fC4dE4jS24R"
         "b34hM4^i44pe44T14f^44pa24UjQ14fg=4iY=4Vk>4`p14Tf84bZ84Xk24`T14_`K4XS34jQ:4ia34Z54TG4Sm44"
         "]R14n[=4_YN4pWJ4g_H4U34nY64jR24VP=4Qe@4bi84cV34^XD4m^34RP74Sp64_[E4Ui64PX2:dY17dQ7:[Y:4h"
         "d@4Pj14TW14T24>4d24^l>4_Y=4n_17ZU37p^2:Pd24Z<=To34J4h24hX24[]64bm24a`S14bC4p64hG4f14j64h"
         "T14b64T64`M4`64hk14D4pR24X=4p24X64je14V94n:4XO4T_24V:4`@4hT14j;4^O4nV24j:4F414@4<4>4P342"
         "4T;4R44nC4XS14Z14`34RC4V94`N4h8404lM4b[24p84fF4`34dI4Z34lZ14T84fZ34hA4h34[lK4bWa74[]P7:S"
         "oI4nh14i44_N4ZL4f34^D4V34VZ14_44X44b44`W14b54R94P14l@4p<4dj14>4P94X44fB4p74[44p84k24T94T"
         "44PI4`54p34X@4lA4V:484f34VR24R44^H4dI4O4^54hq4PE4bS34Sg24d74f74^D4Z94Z34T>444f:4R14b14p5"
         "4C4hH4ZN4n@4f;4P>4b94dD4^<4jd14j94dh14`L4Z44P14bB4b34i24p3454Q14h44R54lG4PS14dC4^B4j=4pP"
         "24^64V74Z84X24H4P34^]14dX24lZT64;4Ri54_Sl74fW24R24PQY84^X54VPA4oh_74f4^6WbEY^E8b16S1AD50"
         "25Pfj315025agj3E5025085205205205205205208405205205205208408405208405208405205205205205Y1"
         "557<5D05B0ToqZ[U4f_U4640]1D0Y<h8j6320db1ZQ1^Q130b1]R1TGVF30C60JdGnqTq320gc2hg1Rh1dSZ4TRl"
         "2ZSl25205>B502502502502W8d5I52052B520512520Qfl6QeX1494B4R^i64Slh64l44J4^44`74n14l44_14QS"
         ">4hiX74i^j64>4P14V14Zji64UVX74lZ>4p24lki64Wki64J4_]14P^14B4dRP94cno84L4Wb>4he>4F4h24:4Sf"
         ">4Tk>444f14p14F424R14T34@4B4b14D4440404jZk64gkp64[Z>4Z14Xhk64_gk64<4Z14`94[64P14P24d34X5"
         "4d14V44P14R2404Z14T14@4N4XE4o@4RA4[<4V24iV24^^34oA4p24b14S84^:414f74`Sn64Som64:4N4X14@4P"
         "44pdn64T44k_n64n24H4m44l84_gA4L4hPB4p3404dXo64YPo64Z14N4H4Zbo64aao64>4jd14Qc14QZB4n]B4L4"
         "T54U34^eP74QZP74VZP74_WP7454R14Z6424UkB4llB4f24Z14h24]PC4Rbd74]`d74XSC46464X14`pR94WYR94"
         "VSR7404ob`64m]A404eUC4Rol74TbG4_WQ84B4_XC4^[C4V34D4T24`84]dC4k14`gC4PTS74iPS74R84844434l"
         "24X14X24K4F4n24X1484d14F4T44X54V24h74hkS74mlS74Q44h64f14R64jPT74mlS74i54g14egD4fSE4Z14n1"
         "4[24ePE4V^E4j14lYU74]RU74ZA4m:4obE4`gE4ahE4W24lZ;464ff:4W64RQ=4W]N4lcA484<4j34E4PWV74cWl"
         "74R[F4Y74j<4V34`nU74mmU74m64Zq4]gF4ZjF4R64^44l;4foU74_lU74UpG4b`G4phV74UeV74[`G4XbG4j24f"
         "1424T]W74Sh>4nn>4gZW74lVX74ioW74L4[64n:4`24b34[34`24N4J4biW74cnW74fq4n34ecH4`iH474dPX74_"
         "]X74ZG4PoW74P34_lW74V74e1454YXI4X[I4V34;4p34`WZ64omY64laX74]pX74nPY74UhX74J4f14`kY74_hY7"
         "4Z14PZZ74n=4cYZ74R14m]J4b_J4i^J404nhJ4Z14Z14X14Z44mjJ4bPK4Ta[74__[74Xe[74Sb[74nRf64mhe64"
         "Rip74^14h84_TX84H4h^K4nop7414^24d14YQ]742404f24QaK4TeK4YdK4P54^hY84ml]74l34P44anK4VdZ84o"
         "p^74Xd^74f24[c^74h54g[L4RaL4D4:4jb_74fB404ak_74g^L4bjp84Yn_7464SjL4bU]84kj_74SSM4`TM494j"
         "14pXa74URa74SVM4ppM4f34V44QaM4X__84n14k^_84Ph_84mea74Xla74aja74Z64F4Z]b74b44Upb74`db74_c"
         "b74n^i64chg74j]N4R54__N4VcN4aXC4T_V84L4SRJ4B4eih6464di64UcU14pRO4;4T14cnG4loG444D4b24pUd"
         "74]Ud74`34p44d44c84d94d24P74W@4^7444P14dUd74ZC4[94cjc84plO444V24X[g74[Vg74`ld74mld8484PU"
         "e84RB4]fe84Z^P14H4F444P44Q24p84g24^94Q54V44f14mjP14dPQ14P24_PQ14^VQ1464XPg74ohf74>4aZQ14"
         "ZpQ14mSZ14VoQ94`;4_Zi84B4bmQ14j44j94f<4VUh74iog74p14d54h54`kh74ebk14aSm54M4X34l^m54cPm54"
         "X64dYk74f14aej74j54P24jQk74UQk74jA4n9424g54jG4h14Znk74mVk74[oU14TRV14Plk74QiQ94j]V14QaL4"
         "RgL4TRm74Z=4gjS94@4dfV14dRn74_eT94XnT94eXn7404l14jhn74W]n74mjV14poV14l74f14h34oRW14TfW94"
         "kQP84lB4j;4mRX14n14dWX14^fQ84[mY94jPZ94b@4V84[mQ84YfX14VjX14:4>4D4>4Z24ZpS8";
}

// Runs of characters of one combining class: characters before, length, class.
inline const char* combining_class_digits() {
  return "PHEV701X704l601X701h605l602Z604l602Z60;l605104l608V701`701V703l603V702l613V704l601V701X7"
         "02l601V701Y702Z701Y702Z701Y70=V7c85V7Y81l604V701l603V701n601l606V706l602V701l602V701n601"
         "T701V701:01;01<01=01>01q01@01A01B02C01D01E01F11G11H01I11V701l611BX28V701N01O01P1`11K01L0"
         "1M01N01O01P101Q101R102V702l605V701l602V701l6@1S1U37V724V701l601V722V711l602V701l6S11T1N1"
         "V701l602V701l602V703l601V702l601V701l603V701l601V701l601V701l601V701l602V7P57V701l601V79"
         "1l6H4V719V713V715V7[13l6l11V703l604V7Z15V705l60>V711l602V701l602V701l603V703l601K01L01M0"
         "3V701l602V702l605V7l117@1931V701l602V7W317@19`11V7m117@19^317@19^317@19o319^317@1971d201"
         "k2U317@19]329@19l319]32W3019=4[3p32f3019=4j3p22l6K1l611l611h6g11Q401R411T454R421R412V701"
         "912V7n11l6`317129b21l6_F3V7dM29N19m419:1V7[61T7_41n601V701l6k61V701l6W219D8V721l6`15V706"
         "l602V701l612l602V702l605V701l604V7U317q19V11V701l607V7f129j117;29S217h43V711105l602V704l"
         "601V717141l661V732V7V62V701l607V701l602V701Z701f601l601Z60U1V701X702T701l601j601V701Y701"
         "l601V701l6`F2V702104V703102V741V732101V701l601V702104l601V7no23V7]419P3P1V7ZA1j601T701X7"
         "01n602P7Y328d^M1V74:V7P12V7`22V7d819U119g419KBV7i13l6U119o217<19_71V712V701l622V752V711V"
         "7d119f719`iC1JQH7V707l602V7]N1l6R71l6e45V7bd11l611V7X11V701101l6419U51V701l6mA4V7S<2V7i4"
         "2l603V701l601V704l6a11V701l601V701l6P619Y119>19i119017U23V7`129n117p219917Z319017b517019"
         "`227@19H7V735V7]619317G1V7S319017k719017n319f319017c319]819017R829417l419c219B19a219U=19"
         "R817129a219hZC51k17V7iU126pUC11VV52h603131R705h688l625V702l6N4V7d43V7k]37V71AV727V712V71"
         "5V7U87V7g;1V7m14V7P_17l6]36V7017";
}

class NormalForms {
 public:
  static const NormalForms& tables() {
    static const NormalForms forms;
    return forms;
  }

  // Can nothing in front of the character join it or change places with it?
  bool begins(std::uint32_t code) const {
    if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2)) {
      return false;  // the second or third part of a Hangul syllable
    }
    const Entry* found = &entry(code);
    while (found->first != 0) {
      found = &entry(found->first);
    }
    return !found->joins;
  }

  // How many characters this one is of, which are in `parts`; at most four.
  [[gnu::noinline]] std::size_t decompose(std::uint32_t code, std::uint32_t* parts) const {
    const std::uint32_t hangul = code - 0xAC00;  // 28 third parts, the first none; 21 second ones
    if (hangul < 11172) {
      parts[0] = 0x1100 + hangul / 588;
      parts[1] = 0x1161 + hangul % 588 / 28;
      parts[2] = 0x11A7 + hangul % 28;
      return hangul % 28 > 0 ? 3 : 2;
    }
    const Entry& found = entry(code);
    if (found.first == 0) {
      parts[0] = code;
      return 1;
    }
    const std::size_t n = decompose(found.first, parts);
    parts[n] = found.second;
    return found.second != 0 ? n + 1 : n;
  }

  // Marks in the order of their classes, equal ones as they stand: n log n for any n.
  void reorder(std::vector<std::uint32_t>& codes) const {
    std::vector<double> keys(codes.size());
    double starter = 0;
    bool sorted = true;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const unsigned combining_class = entry(codes[i]).combining_class;
      starter += combining_class == 0 ? 256 : 0;
      keys[i] = starter + combining_class;
      sorted = sorted && (i == 0 || keys[i - 1] <= keys[i]);
    }
    if (!sorted) {
      const std::vector<std::uint32_t> given = codes;
      const std::vector<std::size_t> order = stable_order(keys);
      for (std::size_t i = 0; i < order.size(); ++i) {
        codes[i] = given[order[i]];
      }
    }
  }

  // A starter takes each mark behind it that it has a pair with, unless one of the same class or
  // another starter stands between.
  void compose(std::vector<std::uint32_t>& codes) const {
    std::size_t starter = 0, kept = 0;
    bool any = false;
    int between = -1;  // the class of what stands directly before, -1: the starter itself
    for (const std::uint32_t code : codes) {
      const int combining_class = entry(code).combining_class;
      const std::uint32_t both =
          any && between < combining_class ? composite(codes[starter], code) : 0;
      if (both != 0) {
        codes[starter] = both;
        continue;
      }
      any = any || combining_class == 0;
      starter = combining_class == 0 ? kept : starter;
      between = combining_class == 0 ? -1 : combining_class;
      codes[kept++] = code;
    }
    codes.erase(codes.begin() + static_cast<std::ptrdiff_t>(kept), codes.end());
  }

 private:
  struct Entry {
    std::uint32_t first = 0, second = 0;  // 0: none
    std::uint8_t combining_class = 0;     // 0: a starter
    bool joins = false;                   // may stand second in a pair, or move
  };

  NormalForms() : places_(0x2FA1E), entries_(1) {
    read_decompositions();
    std::uint32_t code = 0;
    for (const char* digits = combining_class_digits(); *digits != '\0';) {
      code += next_number(digits);
      const std::uint32_t length = next_number(digits), combining_class = next_number(digits);
      for (const std::uint32_t end = code + length; code < end; ++code) {
        entry_of(code).combining_class = static_cast<std::uint8_t>(combining_class);
        entry_of(code).joins = true;
      }
    }
  }

  void read_decompositions() {
    const auto step = [](const char*& digits) {
      const std::uint32_t n = next_number(digits);
      return n % 2 == 0 ? n / 2 : 0U - (n + 1) / 2;
    };
    std::uint32_t code = 0, single = 0, first = 0, second = 0;
    for (const char* digits = decomposition_digits(); *digits != '\0';) {
      const std::uint32_t head = next_number(digits);
      code += head / 3;
      if (head % 3 == 1) {
        single += step(digits);
        entry_of(code).first = single;
        continue;
      }
      first += step(digits);
      second += step(digits);
      entry_of(code).first = first;
      entry_of(code).second = second;
      if (head % 3 == 0) {
        pairs_.add(static_cast<std::int32_t>(first), static_cast<std::int32_t>(second), 0,
                   static_cast<std::int32_t>(code));
        entry_of(second).joins = true;
      }
    }
  }

  const Entry& entry(std::uint32_t code) const {
    return entries_[code < places_.size() ? places_[code] : 0U];
  }
  // The entry of a character, made when it has none.
  [[gnu::noinline]] Entry& entry_of(std::uint32_t code) {
    if (places_[code] == 0) {
      places_[code] = static_cast<std::uint16_t>(entries_.size());
      entries_.push_back(Entry());
    }
    return entries_[places_[code]];
  }

  // The character that two become, 0 when none.
  std::uint32_t composite(std::uint32_t first, std::uint32_t second) const {
    const std::uint32_t left = first - 0x1100, middle = second - 0x1161;
    if (left < 19 && middle < 21) {
      return 0xAC00 + 588 * left + 28 * middle;
    }
    const std::uint32_t syllable = first - 0xAC00, last = second - 0x11A7;
    if (syllable < 11172 && syllable % 28 == 0 && last > 0 && last < 28) {
      return first + last;
    }
    const PairMerge pair =
        pairs_.find(static_cast<std::int32_t>(first), static_cast<std::int32_t>(second));
    return pair.merged < 0 ? 0 : static_cast<std::uint32_t>(pair.merged);
  }

  std::vector<std::uint16_t> places_;  // of each code point among the entries
  List<Entry> entries_;                // the first for characters that stay as they are
  PairTable pairs_;
};

// Bytes that are not UTF-8 stay where they are, and nothing joins across them. Bytes below `plain`
// are of characters that are in the form, whatever stands around them.
inline std::string normal_form(const std::string& text, bool composed, unsigned plain) {
  std::size_t at = 0;
  while (at < text.size() && static_cast<unsigned char>(text[at]) < plain) {
    ++at;
  }
  if (at == text.size()) {
    return text;
  }
  const NormalForms& forms = NormalForms::tables();
  std::string out;
  std::vector<std::uint32_t> stretch;
  for (at = 0; at <= text.size();) {
    const bool end = at == text.size();
    const CodePoint c = end ? CodePoint() : code_point(text.data(), at, text.size());
    if (!stretch.empty() && forms.begins(c.code)) {
      if (stretch.size() > 1) {
        forms.reorder(stretch);
        if (composed) {
          forms.compose(stretch);
        }
      }
      for (const std::uint32_t code : stretch) {
        append_utf8(out, code);
      }
      stretch.clear();
    }
    if (c.code == no_code_point) {
      out += text[at];
    } else if (!end) {
      std::uint32_t parts[5];
      const std::size_t n = forms.decompose(c.code, parts);
      for (std::size_t i = 0; i < n; ++i) {
        stretch.push_back(parts[i]);
      }
    }
    at += c.size;
  }
  return out;
}

}  // namespace detail

// Below U+0300, bytes below 0xCC, every text is NFC; below U+0080 every text is NFD.
inline std::string nfc(const std::string& text) { return detail::normal_form(text, true, 0xCC); }
inline std::string nfd(const std::string& text) { return detail::normal_form(text, false, 0x80); }

}  // namespace tinyscale
