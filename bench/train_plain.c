// A training step of GPT-2 as plain loops: the way it is written to be read, with an OpenMP pragma
// where a loop's turns do not depend on each other; nothing is packed or vectorised by hand.
//   gcc -Ofast -march=native -fopenmp bench/train_plain.c -lm -o train_plain
//   ./train_plain tiny    (or gpt2)    a step for every line of its input; prints seconds, loss
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  int B, T, V, L, H, C;  // batch, time, vocabulary, layers, heads, width
} Shape;

static unsigned long long random_state = 42;
static float random_unit(void) {  // in [-1, 1)
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (float)(random_state >> 40) * (2.0f / 16777216.0f) - 1.0f;
}

static float* zeros(size_t count) {
  float* p = (float*)malloc(count * sizeof(float));
  if (p == NULL) {
    fprintf(stderr, "train_plain: no memory for %zu numbers\n", count);
    exit(1);
  }
  memset(p, 0, count * sizeof(float));
  return p;
}

// y[r, o] = bias[o] + sum_i x[r, i] w[o, i], eight rows at a time so that w is read less often.
static void linear(float* y, const float* x, const float* w, const float* bias, int rows, int in,
                   int out) {
#pragma omp parallel for
  for (int r = 0; r < rows; r += 8) {
    for (int o = 0; o < out; o++) {
      const float* wo = w + (size_t)o * in;
      const float* xr = x + (size_t)r * in;
      float sum[8];
      for (int j = 0; j < 8; j++) {
        sum[j] = bias != NULL ? bias[o] : 0.0f;
      }
      for (int i = 0; i < in; i++) {
        for (int j = 0; j < 8; j++) {
          sum[j] += xr[(size_t)j * in + i] * wo[i];
        }
      }
      for (int j = 0; j < 8; j++) {
        y[(size_t)(r + j) * out + o] = sum[j];
      }
    }
  }
}

static void linear_backward(float* dx, float* dw, float* dbias, const float* dy, const float* x,
                            const float* w, int rows, int in, int out) {
#pragma omp parallel for
  for (int r = 0; r < rows; r++) {
    float* dxr = dx + (size_t)r * in;
    for (int o = 0; o < out; o++) {
      const float* wo = w + (size_t)o * in;
      const float d = dy[(size_t)r * out + o];
      for (int i = 0; i < in; i++) {
        dxr[i] += wo[i] * d;
      }
    }
  }
#pragma omp parallel for
  for (int o = 0; o < out; o++) {
    float* dwo = dw + (size_t)o * in;
    for (int r = 0; r < rows; r++) {
      const float* xr = x + (size_t)r * in;
      const float d = dy[(size_t)r * out + o];
      if (dbias != NULL) {
        dbias[o] += d;
      }
      for (int i = 0; i < in; i++) {
        dwo[i] += xr[i] * d;
      }
    }
  }
}

static void norm(float* y, float* mean, float* rstd, const float* x, const float* w, const float* b,
                 int rows, int C) {
  for (int r = 0; r < rows; r++) {
    const float* xr = x + (size_t)r * C;
    float m = 0.0f, v = 0.0f;
    for (int i = 0; i < C; i++) {
      m += xr[i];
    }
    m /= (float)C;
    for (int i = 0; i < C; i++) {
      v += (xr[i] - m) * (xr[i] - m);
    }
    const float s = 1.0f / sqrtf(v / (float)C + 1e-5f);
    for (int i = 0; i < C; i++) {
      y[(size_t)r * C + i] = (xr[i] - m) * s * w[i] + b[i];
    }
    mean[r] = m;
    rstd[r] = s;
  }
}

static void norm_backward(float* dx, float* dw, float* db, const float* dy, const float* x,
                          const float* w, const float* mean, const float* rstd, int rows, int C) {
  for (int r = 0; r < rows; r++) {
    const float* xr = x + (size_t)r * C;
    const float* dyr = dy + (size_t)r * C;
    float a = 0.0f, b = 0.0f;
    for (int i = 0; i < C; i++) {
      const float hat = (xr[i] - mean[r]) * rstd[r];
      a += w[i] * dyr[i];
      b += w[i] * dyr[i] * hat;
    }
    a /= (float)C;
    b /= (float)C;
    for (int i = 0; i < C; i++) {
      const float hat = (xr[i] - mean[r]) * rstd[r];
      dw[i] += hat * dyr[i];
      db[i] += dyr[i];
      dx[(size_t)r * C + i] += (w[i] * dyr[i] - a - hat * b) * rstd[r];
    }
  }
}

// qkv (B, T, 3 C); weights (B, H, T, T) keeps the softmax for the way back.
static void attention(float* y, float* weights, const float* qkv, const Shape* s) {
  const int T = s->T, C = s->C, H = s->H, K = C / H;
  const float scale = 1.0f / sqrtf((float)K);
#pragma omp parallel for collapse(3)
  for (int b = 0; b < s->B; b++) {
    for (int t = 0; t < T; t++) {
      for (int h = 0; h < H; h++) {
        const float* q = qkv + ((size_t)b * T + t) * 3 * C + h * K;
        float* p = weights + (((size_t)b * H + h) * T + t) * T;
        float top = -1e30f, sum = 0.0f;
        for (int u = 0; u <= t; u++) {
          const float* k = qkv + ((size_t)b * T + u) * 3 * C + C + h * K;
          float dot = 0.0f;
          for (int i = 0; i < K; i++) {
            dot += q[i] * k[i];
          }
          p[u] = dot * scale;
          top = p[u] > top ? p[u] : top;
        }
        for (int u = 0; u <= t; u++) {
          p[u] = expf(p[u] - top);
          sum += p[u];
        }
        float* out = y + ((size_t)b * T + t) * C + h * K;
        memset(out, 0, (size_t)K * sizeof(float));
        for (int u = 0; u <= t; u++) {
          const float* v = qkv + ((size_t)b * T + u) * 3 * C + 2 * C + h * K;
          p[u] /= sum;
          for (int i = 0; i < K; i++) {
            out[i] += p[u] * v[i];
          }
        }
      }
    }
  }
}

static void attention_backward(float* dqkv, float* dweights, const float* dy, const float* qkv,
                               const float* weights, const Shape* s) {
  const int T = s->T, C = s->C, H = s->H, K = C / H;
  const float scale = 1.0f / sqrtf((float)K);
#pragma omp parallel for collapse(2)
  for (int b = 0; b < s->B; b++) {
    for (int h = 0; h < H; h++) {
      for (int t = 0; t < T; t++) {
        const size_t at = (((size_t)b * H + h) * T + t) * T;
        const float* p = weights + at;
        float* dp = dweights + at;
        const float* d = dy + ((size_t)b * T + t) * C + h * K;
        const float* q = qkv + ((size_t)b * T + t) * 3 * C + h * K;
        float* dq = dqkv + ((size_t)b * T + t) * 3 * C + h * K;
        for (int u = 0; u <= t; u++) {
          const float* v = qkv + ((size_t)b * T + u) * 3 * C + 2 * C + h * K;
          float* dv = dqkv + ((size_t)b * T + u) * 3 * C + 2 * C + h * K;
          float dot = 0.0f;
          for (int i = 0; i < K; i++) {
            dot += v[i] * d[i];
            dv[i] += p[u] * d[i];
          }
          dp[u] = dot;
        }
        for (int u = 0; u <= t; u++) {  // the softmax's matrix of derivatives, written out
          const float* k = qkv + ((size_t)b * T + u) * 3 * C + C + h * K;
          float* dk = dqkv + ((size_t)b * T + u) * 3 * C + C + h * K;
          float score = 0.0f;
          for (int w = 0; w <= t; w++) {
            score += p[w] * ((w == u ? 1.0f : 0.0f) - p[u]) * dp[w];
          }
          score *= scale;
          for (int i = 0; i < K; i++) {
            dq[i] += k[i] * score;
            dk[i] += q[i] * score;
          }
        }
      }
    }
  }
}

static const float gelu_scale = 0.7978845608f;  // sqrt(2 / pi)
static void gelu(float* y, const float* x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    y[i] = 0.5f * x[i] * (1.0f + tanhf(gelu_scale * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
  }
}
static void gelu_backward(float* dx, const float* x, const float* dy, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const float t = tanhf(gelu_scale * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
    const float inner = gelu_scale * (1.0f + 3.0f * 0.044715f * x[i] * x[i]);
    dx[i] += (0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t * t) * inner) * dy[i];
  }
}

static void add(float* y, const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    y[i] = a[i] + b[i];
  }
}
static void add_into(float* y, const float* x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    y[i] += x[i];
  }
}

// Parameters of a layer, in this order; then the same for gradients and both moments.
enum { N1W, N1B, QKVW, QKVB, OUTW, OUTB, N2W, N2B, UPW, UPB, DOWNW, DOWNB, PARTS };
typedef struct {
  float *tokens, *places, *layer[48][PARTS], *nfw, *nfb;
} Parameters;

static size_t lay_out(Parameters* p, float* base, const Shape* s) {
  const size_t C = (size_t)s->C, sizes[PARTS] = {C, C, 3 * C * C, 3 * C, C * C,     C,
                                                 C, C, 4 * C * C, 4 * C, 4 * C * C, C};
  size_t at = 0;
#define PLACE(field, count) (field = base + at, at += (count))
  PLACE(p->tokens, (size_t)s->V * C);
  PLACE(p->places, (size_t)s->T * C);
  for (int l = 0; l < s->L; l++) {
    for (int part = 0; part < PARTS; part++) {
      PLACE(p->layer[l][part], sizes[part]);
    }
  }
  PLACE(p->nfw, C);
  PLACE(p->nfb, C);
  return at;
}

// What a layer keeps for the way back; `dx` names hold gradients of the same shape.
typedef struct {
  float *n1, *m1, *r1, *qkv, *weights, *att, *out, *res1, *n2, *m2, *r2, *up, *act, *down, *res2;
} Kept;

static void make_kept(Kept* k, const Shape* s) {
  const size_t rows = (size_t)s->B * s->T, C = (size_t)s->C;
  k->n1 = zeros(rows * C), k->m1 = zeros(rows), k->r1 = zeros(rows);
  k->qkv = zeros(rows * 3 * C), k->weights = zeros(rows * s->H * s->T);
  k->att = zeros(rows * C), k->out = zeros(rows * C), k->res1 = zeros(rows * C);
  k->n2 = zeros(rows * C), k->m2 = zeros(rows), k->r2 = zeros(rows);
  k->up = zeros(rows * 4 * C), k->act = zeros(rows * 4 * C);
  k->down = zeros(rows * C), k->res2 = zeros(rows * C);
}
static void clear_kept(Kept* k, const Shape* s) {
  const size_t bytes = (size_t)s->B * s->T * s->C * sizeof(float);
  memset(k->n1, 0, bytes), memset(k->qkv, 0, 3 * bytes), memset(k->att, 0, bytes);
  memset(k->res1, 0, bytes), memset(k->n2, 0, bytes), memset(k->up, 0, 4 * bytes);
  memset(k->act, 0, 4 * bytes), memset(k->res2, 0, bytes);
}

typedef struct {
  Shape s;
  size_t count;
  float *memory, *gradient, *m, *v;
  Parameters p, g;
  Kept kept[48], back;  // one layer's gradients are reused by the next
  float *embedded, *dembedded, *nf, *mf, *rf, *dnf, *logits, *dlogits;
  int *ids, *targets, steps;
} Model;

static void make_model(Model* x) {
  const Shape* s = &x->s;
  const size_t rows = (size_t)s->B * s->T, C = (size_t)s->C;
  Parameters none;
  x->count = lay_out(&none, NULL, s);
  x->memory = zeros(x->count), x->gradient = zeros(x->count);
  x->m = zeros(x->count), x->v = zeros(x->count);
  lay_out(&x->p, x->memory, s);
  lay_out(&x->g, x->gradient, s);
  for (size_t i = 0; i < x->count; i++) {
    x->memory[i] = 0.035f * random_unit();
  }
  for (int l = 0; l < s->L; l++) {
    for (int i = 0; i < s->C; i++) {
      x->p.layer[l][N1W][i] = x->p.layer[l][N2W][i] = 1.0f;
    }
    make_kept(&x->kept[l], s);
  }
  for (int i = 0; i < s->C; i++) {
    x->p.nfw[i] = 1.0f;
  }
  make_kept(&x->back, s);
  x->embedded = zeros(rows * C), x->dembedded = zeros(rows * C);
  x->nf = zeros(rows * C), x->dnf = zeros(rows * C), x->mf = zeros(rows), x->rf = zeros(rows);
  x->logits = zeros(rows * s->V), x->dlogits = zeros(rows * s->V);
  x->ids = (int*)malloc(rows * sizeof(int)), x->targets = (int*)malloc(rows * sizeof(int));
  for (size_t i = 0; i < rows; i++) {
    x->ids[i] = (int)((random_unit() + 1.0f) * 0.5f * (float)s->V) % s->V;
    x->targets[i] = (int)((random_unit() + 1.0f) * 0.5f * (float)s->V) % s->V;
  }
}

static void embed(Model* x) {
  const int C = x->s.C;
  for (int r = 0; r < x->s.B * x->s.T; r++) {
    add(x->embedded + (size_t)r * C, x->p.tokens + (size_t)x->ids[r] * C,
        x->p.places + (size_t)(r % x->s.T) * C, (size_t)C);
  }
}

static float cross_entropy(Model* x) {  // dlogits too
  const int rows = x->s.B * x->s.T, V = x->s.V;
  double loss = 0.0;
#pragma omp parallel for reduction(+ : loss)
  for (int r = 0; r < rows; r++) {
    const float* z = x->logits + (size_t)r * V;
    float* dz = x->dlogits + (size_t)r * V;
    float top = z[0], sum = 0.0f;
    for (int i = 1; i < V; i++) {
      top = z[i] > top ? z[i] : top;
    }
    for (int i = 0; i < V; i++) {
      dz[i] = expf(z[i] - top);
      sum += dz[i];
    }
    for (int i = 0; i < V; i++) {
      dz[i] = (dz[i] / sum - (i == x->targets[r] ? 1.0f : 0.0f)) / (float)rows;
    }
    loss += log((double)sum) - (double)(z[x->targets[r]] - top);
  }
  return (float)(loss / rows);
}

static void layer_forward(Model* x, int l, const float* in) {
  const Shape* s = &x->s;
  const int rows = s->B * s->T, C = s->C;
  float** p = x->p.layer[l];
  Kept* k = &x->kept[l];
  norm(k->n1, k->m1, k->r1, in, p[N1W], p[N1B], rows, C);
  linear(k->qkv, k->n1, p[QKVW], p[QKVB], rows, C, 3 * C);
  attention(k->att, k->weights, k->qkv, s);
  linear(k->out, k->att, p[OUTW], p[OUTB], rows, C, C);
  add(k->res1, in, k->out, (size_t)rows * C);
  norm(k->n2, k->m2, k->r2, k->res1, p[N2W], p[N2B], rows, C);
  linear(k->up, k->n2, p[UPW], p[UPB], rows, C, 4 * C);
  gelu(k->act, k->up, (size_t)rows * 4 * C);
  linear(k->down, k->act, p[DOWNW], p[DOWNB], rows, 4 * C, C);
  add(k->res2, k->res1, k->down, (size_t)rows * C);
}

// dy is the gradient of the layer's result; dx, of what went in, is added to.
static void layer_backward(Model* x, int l, const float* in, const float* dy, float* dx) {
  const Shape* s = &x->s;
  const int rows = s->B * s->T, C = s->C;
  float **p = x->p.layer[l], **g = x->g.layer[l];
  Kept *k = &x->kept[l], *d = &x->back;
  clear_kept(d, s);
  linear_backward(d->act, g[DOWNW], g[DOWNB], dy, k->act, p[DOWNW], rows, 4 * C, C);
  gelu_backward(d->up, k->up, d->act, (size_t)rows * 4 * C);
  linear_backward(d->n2, g[UPW], g[UPB], d->up, k->n2, p[UPW], rows, C, 4 * C);
  add_into(d->res1, dy, (size_t)rows * C);
  norm_backward(d->res1, g[N2W], g[N2B], d->n2, k->res1, p[N2W], k->m2, k->r2, rows, C);
  linear_backward(d->att, g[OUTW], g[OUTB], d->res1, k->att, p[OUTW], rows, C, C);
  attention_backward(d->qkv, d->weights, d->att, k->qkv, k->weights, s);
  linear_backward(d->n1, g[QKVW], g[QKVB], d->qkv, k->n1, p[QKVW], rows, C, 3 * C);
  memcpy(dx, d->res1, (size_t)rows * C * sizeof(float));
  norm_backward(dx, g[N1W], g[N1B], d->n1, in, p[N1W], k->m1, k->r1, rows, C);
}

static void adamw(Model* x) {
  const float b1 = 0.9f, b2 = 0.99f, rate = 3e-4f, decay = 0.1f;
  x->steps++;
  const float c1 = 1.0f - powf(b1, (float)x->steps), c2 = 1.0f - powf(b2, (float)x->steps);
#pragma omp parallel for
  for (size_t i = 0; i < x->count; i++) {
    const float g = x->gradient[i];
    x->m[i] = b1 * x->m[i] + (1.0f - b1) * g;
    x->v[i] = b2 * x->v[i] + (1.0f - b2) * g * g;
    x->memory[i] -= rate * (x->m[i] / c1 / (sqrtf(x->v[i] / c2) + 1e-8f) + decay * x->memory[i]);
  }
}

static float step(Model* x) {
  const Shape* s = &x->s;
  const int rows = s->B * s->T, C = s->C;
  const size_t numbers = (size_t)rows * C;
  embed(x);
  for (int l = 0; l < s->L; l++) {
    layer_forward(x, l, l == 0 ? x->embedded : x->kept[l - 1].res2);
  }
  const float* last = x->kept[s->L - 1].res2;
  norm(x->nf, x->mf, x->rf, last, x->p.nfw, x->p.nfb, rows, C);
  linear(x->logits, x->nf, x->p.tokens, NULL, rows, C, s->V);
  const float loss = cross_entropy(x);

  memset(x->gradient, 0, x->count * sizeof(float));
  memset(x->dnf, 0, numbers * sizeof(float));
  linear_backward(x->dnf, x->g.tokens, NULL, x->dlogits, x->nf, x->p.tokens, rows, C, s->V);
  float *dy = x->dembedded, *dx = x->back.out;
  memset(dy, 0, numbers * sizeof(float));
  norm_backward(dy, x->g.nfw, x->g.nfb, x->dnf, last, x->p.nfw, x->mf, x->rf, rows, C);
  for (int l = s->L - 1; l >= 0; l--) {
    layer_backward(x, l, l == 0 ? x->embedded : x->kept[l - 1].res2, dy, dx);
    float* const other = dy;
    dy = dx;
    dx = other;
  }
  for (int r = 0; r < rows; r++) {
    add_into(x->g.tokens + (size_t)x->ids[r] * C, dy + (size_t)r * C, (size_t)C);
    add_into(x->g.places + (size_t)(r % s->T) * C, dy + (size_t)r * C, (size_t)C);
  }
  adamw(x);
  return loss;
}

static double now(void) {  // processor time on one thread, else the time on the wall
  struct timespec t;
  const char* const threads = getenv("OMP_NUM_THREADS");
  const int one = threads != NULL && strcmp(threads, "1") == 0;
  clock_gettime(one ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char** argv) {
  static Model x;
  const Shape tiny = {4, 128, 256, 4, 4, 128}, gpt2 = {4, 64, 50257, 12, 12, 768};
  x.s = argc > 1 && strcmp(argv[1], "gpt2") == 0 ? gpt2 : tiny;
  make_model(&x);
  printf("C program: plain loops, gcc -Ofast -march=native -fopenmp\n");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (x.s.C < 512) {  // a short one is timed when its numbers have come into the cache
      step(&x);
    }
    const double start = now();
    const float loss = step(&x);
    printf("%.9g loss %.5f\n", now() - start, (double)loss);
    fflush(stdout);
  }
  return 0;
}
