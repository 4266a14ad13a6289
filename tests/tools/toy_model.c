/* toy_model [-c OPS] [-n NAME] [-v VERSION] [-w DIGIT] [-t DTYPE] [-b BATCH] [-m ROWS] [-i INPUT] [-f FAULT]
 * [-l LOG] [-q] - a child of vfm-exec(7) for tests.
 *
 * Its tokenizer has stride 2 x 4 x 4, 3 channels and 1 + 2n frames: a latent is the mean of its block, in [-1, 1].  Its
 * text encoder has one row of 8 values a word, at most ROWS (64); its image encoder 5 rows of 6 values, the mean
 * colours of a fifth of the picture and of its complement.  A caption tells what the child was shown; a score is the
 * mean of the frames; a vector is their mean colour, with a fourth element for a record with "longer"; that of a text
 * the colour that it names; shots end where frames differ, in windows of 20 with margins of 4.  -w DIGIT: all digits of
 * the sha256 of the weights.  -q: rows only of the words after the first double quote of a text, or null.  -i INPUT: JSON of hello.input.  FAULT: nan, shape, short (a short file), wide (out of
 * range), die (on a record with "die"). */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHANNELS = 3, ST = 2, SS = 4, DIM = 8, IMAGE_ROWS = 5, IMAGE_DIM = 6 };

static const char *ops = "encode,encode-given,encode-given-last,decode,text-encode,image-encode,caption,score,embed,"
			 "embed-text,shots",
		  *name = "toy", *version = "1.0", *dtype = "float32",
		  *input = "{\"kind\":\"frames\",\"frames\":4,\"width\":16,\"height\":16}", *fault = "", *log_path;
static char digit = 'a';
static int batch = 1, max_rows = 64;
static bool quoted;

/* ---- arrays ---- */

static void write_floats(const char *path, const float *x, size_t n)
{
	FILE *f = fopen(path, "wb");

	n -= !strcmp(fault, "short");
	for (size_t i = 0; i < n; i++) {
		float v = !strcmp(fault, "nan") && i == n / 2 ? NAN : !strcmp(fault, "wide") && i == n / 3 ? 99 : x[i];
		uint32_t bits;
		uint16_t half;
		_Float16 h16 = (_Float16)v;

		memcpy(&bits, &v, 4);
		half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
		if (isnan(v))
			half = 0x7fc0;
		if (!strcmp(dtype, "float32"))
			fwrite(&v, 4, 1, f);
		else if (!strcmp(dtype, "float16"))
			fwrite(&h16, 2, 1, f);
		else
			fwrite(&half, 2, 1, f);
	}
	fclose(f);
}

static void *read_file(const char *path, size_t bytes)
{
	FILE *f = fopen(path, "rb");
	char *data = malloc(bytes + 1);

	if (!f || fread(data, 1, bytes + 1, f) != bytes) {
		fprintf(stderr, "'%s' has not %zu bytes\n", path, bytes);
		exit(1);
	}
	fclose(f);
	return data;
}

static void get_shape(const json_t *o, int64_t shape[4])
{
	for (size_t i = 0; i < 4; i++)
		shape[i] = json_integer_value(json_array_get(json_object_get(o, "shape"), i));
}

static uint8_t *read_frames(const json_t *r, int64_t s[4])
{
	const json_t *o = json_object_get(r, "frames");

	get_shape(o, s);
	return read_file(json_string_value(json_object_get(o, "path")), (size_t)(s[0] * s[1] * s[2] * s[3]));
}

/* ---- the model ---- */

/* Frames [first, end) of latent frame t. */
static void frame_range(int64_t t, int64_t *first, int64_t *end)
{
	*first = t ? 1 + (t - 1) * ST : 0;
	*end = 1 + t * ST;
}

static json_t *encode(const json_t *r, const char *out)
{
	int64_t s[4], t, h, w, a, b, given = json_integer_value(json_object_get(r, "given")),
				     last = json_integer_value(json_object_get(r, "given_last"));
	uint8_t *rgb = read_frames(r, s);
	float *x;

	t = 1 + (s[0] - 1) / ST;
	h = s[1] / SS;
	w = s[2] / SS;
	x = calloc((size_t)(CHANNELS * t * h * w), sizeof(float));
	for (int64_t c = 0; c < CHANNELS; c++)
		for (int64_t k = 0; k < t; k++) {
			frame_range(k, &a, &b);
			for (int64_t f = a; f < b; f++)
				for (int64_t y = 0; y < h * SS && (!given || f < given || f >= s[0] - last); y++)
					for (int64_t q = 0; q < w * SS; q++)
						x[((c * t + k) * h + y / SS) * w + q / SS] +=
							((float)rgb[((f * s[1] + y) * s[2] + q) * 3 + c] / 127.5f - 1) /
							(float)((b - a) * SS * SS);
		}
	write_floats(out, x, (size_t)(CHANNELS * t * h * w));
	free(x);
	free(rgb);
	if (!strcmp(fault, "shape"))
		t++;
	return json_pack("{s:{s:[i,I,I,I],s:s}}", "latent", "shape", CHANNELS, (json_int_t)t, (json_int_t)h,
		(json_int_t)w, "dtype", dtype);
}

static json_t *decode(const json_t *r, const char *out)
{
	const json_t *o = json_object_get(r, "latent");
	int64_t frames = json_integer_value(json_object_get(r, "frames")), s[4], h, w;
	uint8_t *rgb;
	float *x;
	FILE *f;

	get_shape(o, s);
	x = read_file(
		json_string_value(json_object_get(o, "path")), (size_t)(s[0] * s[1] * s[2] * s[3]) * sizeof(float));
	h = s[2] * SS;
	w = s[3] * SS;
	rgb = malloc((size_t)(frames * h * w * 3));
	for (int64_t i = 0; i < frames; i++)
		for (int64_t y = 0; y < h; y++)
			for (int64_t q = 0; q < w; q++)
				for (int64_t c = 0; c < CHANNELS; c++) {
					float v = x[((c * s[1] + (i + 1) / ST) * s[2] + y / SS) * s[3] + q / SS];

					v = (v + 1) * 127.5f;
					rgb[((i * h + y) * w + q) * 3 + c] = (uint8_t)(v < 0 ? 0
							: v > 255                            ? 255
											     : lrintf(v));
				}
	f = fopen(out, "wb");
	fwrite(rgb, 1, (size_t)(frames * h * w * 3), f);
	fclose(f);
	free(rgb);
	free(x);
	return json_pack("{s:{s:[I,I,I,i],s:s}}", "frames", "shape", (json_int_t)frames, (json_int_t)h, (json_int_t)w,
		3, "dtype", "uint8");
}

static json_t *encode_text(const json_t *r, const char *out)
{
	const char *p = json_string_value(json_object_get(r, "text"));
	float rows[64][DIM] = {0};
	int n = 0;

	if (quoted && !strchr(p, '"'))
		return json_pack("{s:n}", "rows");
	p = quoted ? strchr(p, '"') + 1 : p;

	for (; *p && n < max_rows; n++) {
		size_t len = strcspn(p, " ");
		uint32_t hash = 2166136261u;

		for (size_t i = 0; i < len; i++)
			hash = (hash ^ (uint8_t)p[i]) * 16777619u;
		for (int i = 0; i < DIM; i++)
			rows[n][i] = (float)(hash >> (4 * i) & 15) / 8 - 1;
		p += len + (p[len] == ' ');
	}
	n = n ? n : 1;
	write_floats(out, rows[0], (size_t)n * DIM);
	return json_pack("{s:{s:[i,i],s:s}}", "rows", "shape", n, DIM, "dtype", dtype);
}

/* The rows of each picture in turn; fault shape: a row more. */
static json_t *encode_image(const json_t *r, const char *out)
{
	int64_t s[4];
	uint8_t *rgb = read_frames(r, s);
	int n = (int)s[0] * IMAGE_ROWS + !strcmp(fault, "shape");
	float(*rows)[IMAGE_DIM] = calloc((size_t)n, sizeof(*rows));

	for (int64_t i = 0; i < s[0] * IMAGE_ROWS; i++) {
		const uint8_t *p = rgb + i / IMAGE_ROWS * s[1] * s[2] * 3;
		int64_t from = i % IMAGE_ROWS * s[1] / IMAGE_ROWS, to = (i % IMAGE_ROWS + 1) * s[1] / IMAGE_ROWS;
		double sum[3] = {0};

		for (int64_t k = from * s[2]; k < to * s[2]; k++)
			for (int c = 0; c < 3; c++)
				sum[c] += p[k * 3 + c];
		for (int c = 0; c < 3; c++) {
			rows[i][c] = (float)(sum[c] / (double)((to - from) * s[2]) / 255);
			rows[i][3 + c] = 1 - rows[i][c];
		}
	}
	free(rgb);
	write_floats(out, rows[0], (size_t)n * IMAGE_DIM);
	free(rows);
	return json_pack("{s:{s:[i,i],s:s}}", "rows", "shape", n, IMAGE_DIM, "dtype", dtype);
}

/* ---- looking at clips ---- */

static json_t *caption(const json_t *r)
{
	const json_t *clip = json_object_get(r, "clip");
	const char *prompt = json_string_value(json_object_get(r, "prompt"));
	char text[512];
	int64_t s[4];

	if (clip)
		snprintf(text, sizeof(text), "%s clip %lld-%lld", prompt,
			(long long)json_integer_value(json_object_get(clip, "start_frame")),
			(long long)json_integer_value(json_object_get(clip, "end_frame")));
	else {
		uint8_t *rgb = read_frames(r, s);

		snprintf(text, sizeof(text), "%s %lldx%lldx%lld first %d last %d", prompt, (long long)s[0],
			(long long)s[1], (long long)s[2], rgb[0], rgb[(s[0] - 1) * s[1] * s[2] * 3]);
		free(rgb);
	}
	return json_pack("{s:s}", "caption", text);
}

static void mean_colour(const json_t *r, float mean[3])
{
	int64_t s[4];
	uint8_t *rgb = read_frames(r, s);
	double sum[3] = {0};

	for (int64_t i = 0; i < s[0] * s[1] * s[2]; i++)
		for (int c = 0; c < 3; c++)
			sum[c] += rgb[i * 3 + c];
	for (int c = 0; c < 3; c++)
		mean[c] = (float)(sum[c] / (double)(s[0] * s[1] * s[2]) / 255);
	free(rgb);
}

static json_t *score(const json_t *r)
{
	float mean[3] = {0};

	if (json_object_get(r, "frames"))
		mean_colour(r, mean);
	return json_pack("{s:{s:f,s:f}}", "score", "redness", (double)(mean[0] - mean[1]), "brightness",
		(double)(mean[0] + mean[1] + mean[2]) / 3);
}

static json_t *embed(const json_t *r, const char *out)
{
	const int dim = json_object_get(json_object_get(r, "record"), "longer") ? 4 : 3;
	float mean[4] = {0};

	mean_colour(r, mean);
	write_floats(out, mean, (size_t)dim);
	return json_pack("{s:{s:[i],s:s}}", "vector", "shape", dim, "dtype", dtype);
}

/* The colour that a text names, or the sum of several; grey without one. */
static json_t *embed_text(const json_t *r, const char *out)
{
	const char *text = json_string_value(json_object_get(r, "text")), *colours[] = {"red", "green", "blue"};
	float x[3];
	bool any = false;

	for (int c = 0; c < 3; c++)
		any |= strstr(text, colours[c]) != NULL;
	for (int c = 0; c < 3; c++)
		x[c] = any ? strstr(text, colours[c]) != NULL : 0.5f;
	write_floats(out, x, 3);
	return json_pack("{s:{s:[i],s:s}}", "vector", "shape", 3, "dtype", dtype);
}

/* 1 for a frame that the next one differs from by more than a fifth of the range, 0 for others; fault shape: one more.
 */
static json_t *shots(const json_t *r, const char *out)
{
	int64_t s[4], n, size;
	uint8_t *rgb = read_frames(r, s);
	float *p = calloc((size_t)s[0] + 1, sizeof(float));

	size = s[1] * s[2] * s[3];
	n = s[0] + !strcmp(fault, "shape");
	for (int64_t i = 0; i + 1 < s[0]; i++) {
		int64_t sum = 0;

		for (int64_t k = 0; k < size; k++)
			sum += abs(rgb[i * size + k] - rgb[(i + 1) * size + k]);
		p[i] = (double)sum > 51 * (double)size ? 1 : 0;
	}
	write_floats(out, p, (size_t)n);
	free(p);
	free(rgb);
	return json_pack("{s:{s:[I],s:s}}", "cut", "shape", (json_int_t)n, "dtype", dtype);
}

static json_t *answer(const json_t *r)
{
	const char *op = json_string_value(json_object_get(r, "op")),
		   *out = json_string_value(json_object_get(r, "out"));
	const json_t *rec = json_object_get(r, "record");
	json_t *a;

	if (json_object_get(rec, "die") && !strcmp(fault, "die"))
		abort();
	if (json_object_get(rec, "refuse"))
		return json_pack("{s:s}", "error", "refused");
	a = !strcmp(op, "encode")             ? encode(r, out)
		: !strcmp(op, "decode")       ? decode(r, out)
		: !strcmp(op, "score")        ? score(r)
		: !strcmp(op, "embed")        ? embed(r, out)
		: !strcmp(op, "embed-text")   ? embed_text(r, out)
		: !strcmp(op, "caption")      ? caption(r)
		: !strcmp(op, "shots")        ? shots(r, out)
		: !strcmp(op, "image-encode") ? encode_image(r, out)
					      : encode_text(r, out);
	return a;
}

static void say_hello(json_t *in)
{
	json_t *o, *list = json_array();
	char sha[65] = "", text[64];

	memset(sha, digit, 64);
	for (const char *p = ops; *p;) {
		snprintf(text, sizeof(text), "%.*s", (int)strcspn(p, ","), p);
		json_array_append_new(list, json_string(text));
		p += strcspn(p, ",");
		p += *p == ',';
	}
	o = json_pack("{s:i,s:s,s:s,s:s,s:o,s:i,s:o,s:{s:[i,i,i],s:i,s:[i,i],s:s,s:[i,i]},s:{s:i,s:i},s:{s:i,s:i},s:{s:"
		      "i,s:i,s:i,s:i}}",
		"vfm_exec", 1, "name", name, "version", version, "sha256", sha, "capabilities", list, "batch", batch,
		"input", in, "tokenizer", "stride", ST, SS, SS, "channels", CHANNELS, "frames", 1, ST, "scaling",
		"unit", "range", -2, 2, "text", "dim", DIM, "max_rows", max_rows, "image", "dim", IMAGE_DIM, "rows",
		IMAGE_ROWS, "shots", "width", 16, "height", 12, "frames", 20, "margin", 4);
	json_dumpf(o, stdout, JSON_COMPACT);
	json_decref(o);
	putchar('\n');
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t cap = 0;
	json_t *in;
	int opt;

	while ((opt = getopt(argc, argv, "c:n:v:w:t:b:m:i:f:l:q")) > 0) {
		switch (opt) {
		case 'c':
			ops = optarg;
			break;
		case 'n':
			name = optarg;
			break;
		case 'v':
			version = optarg;
			break;
		case 'w':
			digit = *optarg;
			break;
		case 't':
			dtype = optarg;
			break;
		case 'b':
			batch = atoi(optarg);
			break;
		case 'm':
			max_rows = atoi(optarg);
			break;
		case 'i':
			input = optarg;
			break;
		case 'f':
			fault = optarg;
			break;
		case 'q':
			quoted = true;
			break;
		case 'l':
			log_path = optarg;
			break;
		default:
			return 2;
		}
	}
	if (max_rows < 1 || max_rows > 64) {
		fprintf(stderr, "-m: 1 to 64 rows\n");
		return 2;
	}
	in = json_loads(input, 0, NULL);
	if (!in) {
		fprintf(stderr, "-i: no JSON\n");
		return 2;
	}
	say_hello(in);
	while (getline(&line, &cap, stdin) > 0) {
		json_t *r = json_loads(line, 0, NULL), *a = answer(r);
		bool more = json_is_true(json_object_get(r, "more"));

		if (log_path) {
			FILE *f = fopen(log_path, "a");

			fputs(line, f);
			fclose(f);
		}
		json_object_set(a, "id", json_object_get(r, "id"));
		json_dumpf(a, stdout, JSON_COMPACT);
		putchar('\n');
		json_decref(a);
		json_decref(r);
		if (!more)
			fflush(stdout);
	}
	free(line);
	return 0;
}
