// Decoding a Llama-family model as plain loops: the way it is written to be read. Weights are
// random; every step is done in full: norms, rotary embedding, a cache, attention, SwiGLU, the
// classifier (tied to the embedding), the largest logit. -DINT8: weights int8 in groups of 64 with
// f32 scales, activations rounded the same way before each product, sums of a group in int32.
//   gcc -Ofast -march=native -fopenmp bench/decode_plain.c -lm -o decode_plain
//   ./decode_plain 15M    (or 110M)    for each line of its input: "decode 64" makes 64 tokens from
//   an empty cache, "products 64" does their matrix products alone; prints seconds a token
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  int width, hidden, layers, heads, vocabulary, context;
} Shape;

#ifdef INT8
enum { group = 64 };
typedef struct {
  int8_t* codes;
  float* scales;
} Numbers;  // of a matrix, or of activations
#else
typedef struct {
  float* values;
} Numbers;
#endif

typedef struct {
  float *attention_norm, *feed_norm;
  Numbers q, k, v, o, gate, down, up;
  float *keys, *values;  // the cache: [context][width]
} Layer;

typedef struct {
  Shape s;
  Layer* layers;
  Numbers embedding;  // and classifier
  float* final_norm;
  float *x, *y, *q, *attended, *gate, *up, *scores, *logits;
  Numbers in, hidden_in;  // activations as a product sees them
} Model;

static unsigned long long random_state = 42;
static float random_unit(void) {  // in [-1, 1)
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (float)(random_state >> 40) * (2.0f / 16777216.0f) - 1.0f;
}

static void* room(size_t count, size_t bytes) {
  void* p = calloc(count, bytes);
  if (p == NULL) {
    fprintf(stderr, "decode_plain: no memory for %zu numbers\n", count);
    exit(1);
  }
  return p;
}

static float* floats(size_t count, float fill) {
  float* p = (float*)room(count, sizeof(float));
  for (size_t i = 0; i < count; i++) {
    p[i] = fill;
  }
  return p;
}

static Numbers numbers(size_t count) {
  Numbers n;
#ifdef INT8
  n.codes = (int8_t*)room(count, 1);
  n.scales = (float*)room(count / group + 1, sizeof(float));
#else
  n.values = floats(count, 0.0f);
#endif
  return n;
}

#ifdef INT8
static void round_groups(Numbers to, const float* x, size_t count) {
  for (size_t g = 0; g < count / group; g++) {
    float largest = 0.0f;
    for (int i = 0; i < group; i++) {
      const float size = fabsf(x[g * group + i]);
      largest = size > largest ? size : largest;
    }
    const float scale = largest / 127.0f;
    to.scales[g] = scale;
    for (int i = 0; i < group; i++) {
      to.codes[g * group + i] = scale > 0.0f ? (int8_t)roundf(x[g * group + i] / scale) : (int8_t)0;
    }
  }
}
#endif

// Widths that are no multiple of the group end in a shorter one: these shapes have room for it.
static int padded(int width) {
#ifdef INT8
  return (width + group - 1) / group * group;
#else
  return width;
#endif
}

static Numbers random_matrix(int rows, int cols) {
  const float size = 1.0f / sqrtf((float)cols);
  const int wide = padded(cols);
  Numbers n = numbers((size_t)rows * wide);
  float* row = floats(wide, 0.0f);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < cols; c++) {
      row[c] = size * random_unit();
    }
#ifdef INT8
    Numbers to = {n.codes + (size_t)r * wide, n.scales + (size_t)r * wide / group};
    round_groups(to, row, wide);
#else
    memcpy(n.values + (size_t)r * cols, row, cols * sizeof(float));
#endif
  }
  free(row);
  return n;
}

// y[rows] = w x.
static void product(float* y, Numbers w, Numbers x, int rows, int cols) {
#ifdef INT8
  const int wide = padded(cols), groups = wide / group;
#pragma omp parallel for
  for (int r = 0; r < rows; r++) {
    const int8_t* codes = w.codes + (size_t)r * wide;
    float sum = 0.0f;
    for (int g = 0; g < groups; g++) {
      int32_t dot = 0;
      for (int i = 0; i < group; i++) {
        dot += (int32_t)codes[g * group + i] * (int32_t)x.codes[g * group + i];
      }
      sum += (float)dot * w.scales[(size_t)r * groups + g] * x.scales[g];
    }
    y[r] = sum;
  }
#else
#pragma omp parallel for
  for (int r = 0; r < rows; r++) {
    const float* row = w.values + (size_t)r * cols;
    float sum = 0.0f;
    for (int c = 0; c < cols; c++) {
      sum += row[c] * x.values[c];
    }
    y[r] = sum;
  }
#endif
}

// What a product takes: x itself, or x rounded into `room`.
static Numbers activations(Numbers room, float* x, int count) {
#ifdef INT8
  round_groups(room, x, padded(count));
  return room;
#else
  (void)count;
  room.values = x;
  return room;
#endif
}

static void norm(float* y, const float* x, const float* weight, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; i++) {
    sum += x[i] * x[i];
  }
  const float scale = 1.0f / sqrtf(sum / n + 1e-5f);
  for (int i = 0; i < n; i++) {
    y[i] = weight[i] * (scale * x[i]);
  }
}

static void turn(float* x, int width, int head_size, int place) {
  for (int i = 0; i < width; i += 2) {
    const float angle = place * powf(10000.0f, -(float)(i % head_size) / head_size);
    const float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];
    x[i] = a * c - b * s;
    x[i + 1] = a * s + b * c;
  }
}

static void attend(Model* m, const Layer* l, int place) {
  const int width = m->s.width, size = width / m->s.heads;
#pragma omp parallel for
  for (int h = 0; h < m->s.heads; h++) {
    const float* q = m->q + h * size;
    float* p = m->scores + (size_t)h * m->s.context;
    float* out = m->attended + h * size;
    float most = -1e30f, sum = 0.0f;
    for (int t = 0; t <= place; t++) {
      const float* k = l->keys + (size_t)t * width + h * size;
      float score = 0.0f;
      for (int i = 0; i < size; i++) {
        score += q[i] * k[i];
      }
      p[t] = score / sqrtf((float)size);
      most = p[t] > most ? p[t] : most;
    }
    for (int t = 0; t <= place; t++) {
      p[t] = expf(p[t] - most);
      sum += p[t];
    }
    memset(out, 0, size * sizeof(float));
    for (int t = 0; t <= place; t++) {
      const float* v = l->values + (size_t)t * width + h * size;
      const float share = p[t] / sum;
      for (int i = 0; i < size; i++) {
        out[i] += share * v[i];
      }
    }
  }
}

// One token; returns the next. products_only: nothing between the matrices.
static int forward(Model* m, int token, int place, int products_only) {
  const Shape s = m->s;
  const int width = s.width, size = width / s.heads;
  const int all = !products_only;
#ifdef INT8
  for (int i = 0; i < width; i++) {
    const size_t at = (size_t)token * padded(width) + i;
    m->x[i] = m->embedding.codes[at] * m->embedding.scales[at / group];
  }
#else
  memcpy(m->x, m->embedding.values + (size_t)token * width, width * sizeof(float));
#endif
  for (int l = 0; l < s.layers; l++) {
    Layer* layer = m->layers + l;
    float* key = layer->keys + (size_t)place * width;
    if (all) {
      norm(m->y, m->x, layer->attention_norm, width);
    }
    Numbers in = activations(m->in, m->y, width);
    product(m->q, layer->q, in, width, width);
    product(key, layer->k, in, width, width);
    product(layer->values + (size_t)place * width, layer->v, in, width, width);
    if (all) {
      turn(m->q, width, size, place);
      turn(key, width, size, place);
      attend(m, layer, place);
    }
    product(m->y, layer->o, activations(m->in, m->attended, width), width, width);
    for (int i = 0; i < width && all; i++) {
      m->x[i] += m->y[i];
    }
    if (all) {
      norm(m->y, m->x, layer->feed_norm, width);
    }
    in = activations(m->in, m->y, width);
    product(m->gate, layer->gate, in, s.hidden, width);
    product(m->up, layer->up, in, s.hidden, width);
    for (int i = 0; i < s.hidden && all; i++) {
      m->gate[i] *= m->up[i] / (1.0f + expf(-m->gate[i]));
    }
    product(m->y, layer->down, activations(m->hidden_in, m->gate, s.hidden), width, s.hidden);
    for (int i = 0; i < width && all; i++) {
      m->x[i] += m->y[i];
    }
  }
  if (all) {
    norm(m->y, m->x, m->final_norm, width);
  }
  product(m->logits, m->embedding, activations(m->in, m->y, width), s.vocabulary, width);
  int best = 0;
  for (int i = 1; i < s.vocabulary && all; i++) {
    best = m->logits[i] > m->logits[best] ? i : best;
  }
  return best;
}

static void make_model(Model* m) {
  const Shape s = m->s;
  const size_t wide = padded(s.width), cache = (size_t)s.context * s.width;
  m->embedding = random_matrix(s.vocabulary, s.width);
  m->final_norm = floats(s.width, 1.0f);
  m->layers = (Layer*)room(s.layers, sizeof(Layer));
  for (int l = 0; l < s.layers; l++) {
    Layer* layer = m->layers + l;
    layer->attention_norm = floats(s.width, 1.0f);
    layer->feed_norm = floats(s.width, 1.0f);
    layer->q = random_matrix(s.width, s.width);
    layer->k = random_matrix(s.width, s.width);
    layer->v = random_matrix(s.width, s.width);
    layer->o = random_matrix(s.width, s.width);
    layer->gate = random_matrix(s.hidden, s.width);
    layer->down = random_matrix(s.width, s.hidden);
    layer->up = random_matrix(s.hidden, s.width);
    layer->keys = floats(cache, 0.0f);
    layer->values = floats(cache, 0.0f);
  }
  m->x = floats(wide, 0.0f);
  m->y = floats(wide, 0.0f);
  m->q = floats(wide, 0.0f);
  m->attended = floats(wide, 0.0f);
  m->gate = floats(padded(s.hidden), 0.0f);
  m->up = floats(padded(s.hidden), 0.0f);
  m->scores = floats((size_t)s.heads * s.context, 0.0f);
  m->logits = floats(s.vocabulary, 0.0f);
  m->in = numbers(wide);
  m->hidden_in = numbers(padded(s.hidden));
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char** argv) {
  static Model m;
  const Shape small = {288, 768, 6, 6, 32000, 256}, large = {768, 2048, 12, 12, 32000, 1024};
  m.s = argc > 1 && strcmp(argv[1], "110M") == 0 ? large : small;
  make_model(&m);
  printf("C program: plain loops\n");
  fflush(stdout);
  char line[64], word[32];
  int tokens = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (sscanf(line, "%31s %d", word, &tokens) != 2 || tokens < 1 || tokens > m.s.context) {
      printf("no: decode or products, and a number of tokens up to %d\n", m.s.context);
      fflush(stdout);
      continue;
    }
    const int products_only = strcmp(word, "products") == 0;
    int token = 1;
    const double start = now();
    for (int place = 0; place < tokens; place++) {
      token = forward(&m, token, place, products_only);
    }
    printf("%.9g a token, last %d\n", (now() - start) / tokens, token);
    fflush(stdout);
  }
  return 0;
}
