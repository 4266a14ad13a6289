/* Plans: written and read back in both encodings, and every way of being wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/plan/plan.h"
#include "io/file.h"
#include "train/job/plan_check.h"

#define STEPS 37
#define BATCH 3

static char dir[] = "/tmp/vfm_plan_XXXXXX", file[64];

static int setup(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(file, sizeof(file), "%s/m", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static struct vfm_plan_set sets[2] = {
	{.name = "a", .dir_given = "sub/a", .records = 1000, .weight = 0.25},
	{.name = "b", .dir_given = "/abs/b", .records = 500, .weight = 0.75},
};

static struct vfm_plan_header header(void)
{
	for (int i = 0; i < 2; i++)
		memset(sets[i].index_sha256, "0f"[i], 64);
	return (struct vfm_plan_header){.context = 100,
		.batch = BATCH,
		.steps = STEPS,
		.seed = 42,
		.patch = {1, 2, 2},
		.latent_channels = 16,
		.text_dim = 1024,
		.text2_dim = 1472,
		.n_sets = 2,
		.sets = sets,
		.encoder_ids = {.tokenizer = {.name = "wavelet:16", .version = "1"},
			.text = {.name = "bytes:1024", .version = "2"}}};
}

/* Sample i of pack k. */
static struct vfm_plan_sample sample(int64_t k, int i)
{
	return (struct vfm_plan_sample){
		(int32_t)(k + i) % 2, (int32_t)(k % 5), (k * 7 + i) % 500, (int32_t)(1 + (k + i) % 20)};
}

static int count(int64_t k)
{
	return 1 + (int)(k % 4);
}

static void write_it(enum vfm_plan_format format)
{
	struct vfm_plan_header h = header();
	struct vfm_err err = {0};
	FILE *f = fopen(file, "w");
	struct vfm_plan_writer *w;

	w = vfm_plan_writer_new(f, format, &h, &err);
	assert_non_null(w);
	for (int64_t k = 0; k < STEPS * BATCH; k++) {
		struct vfm_plan_sample s[4];
		struct vfm_plan_pack p = {.cp = 1,
			.step = k / BATCH,
			.pack = (int32_t)(k % BATCH),
			.n_samples = count(k),
			.cost = 0.5 + (double)k,
			.samples = s};

		for (int i = 0; i < p.n_samples; i++) {
			s[i] = sample(k, i);
			p.tokens += s[i].tokens;
		}
		assert_int_equal(vfm_plan_writer_pack(w, &p, &err), 0);
	}
	assert_int_equal(vfm_plan_writer_end(w, STEPS, &err), 0);
	fclose(f);
}

static void check_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *s)
{
	struct vfm_err err = {0};
	int64_t tokens = 0;

	assert_int_equal(vfm_plan_step(m, step, s, &err), 0);
	assert_int_equal(s->step, step);
	assert_int_equal(s->n_packs, BATCH);
	for (int i = 0; i < BATCH; i++) {
		int64_t k = step * BATCH + i, sum = 0;
		const struct vfm_plan_pack *p = &s->packs[i];

		assert_int_equal(p->step, step);
		assert_int_equal(p->pack, i);
		assert_int_equal(p->n_samples, count(k));
		assert_true(p->cost == 0.5 + (double)k);
		for (int j = 0; j < p->n_samples; j++) {
			struct vfm_plan_sample want = sample(k, j);

			assert_int_equal(p->samples[j].set, want.set);
			assert_int_equal(p->samples[j].shard, want.shard);
			assert_int_equal(p->samples[j].index, want.index);
			assert_int_equal(p->samples[j].tokens, want.tokens);
			sum += want.tokens;
		}
		assert_int_equal(p->tokens, sum);
		tokens += sum;
	}
	assert_int_equal(s->tokens, tokens);
}

static void round_trip(void **state)
{
	(void)state;
	for (int format = 0; format < 2; format++) {
		struct vfm_plan_step s = {0};
		struct vfm_err err = {0};
		struct vfm_plan *m;
		const struct vfm_plan_header *h;
		char want[96];

		write_it(format ? VFM_PLAN_BIN : VFM_PLAN_JSONL);
		m = vfm_plan_open(file, &err);
		assert_non_null(m);
		h = vfm_plan_header(m);
		assert_int_equal(h->context, 100);
		assert_int_equal(h->seed, 42);
		assert_int_equal(h->patch[2], 2);
		assert_string_equal(h->sets[0].dir_given, "sub/a");
		snprintf(want, sizeof(want), "%s/sub/a", dir);
		assert_string_equal(h->sets[0].dir, want);
		assert_string_equal(h->sets[1].dir, "/abs/b");
		assert_true(h->sets[1].weight == 0.75);
		assert_string_equal(h->encoder_ids.tokenizer.name, "wavelet:16");
		assert_string_equal(h->encoder_ids.text.version, "2");
		assert_int_equal(h->text2_dim, 1472);
		for (int64_t i = 0; i < STEPS; i++) /* in order, then all over the place */
			check_step(m, i, &s);
		for (int64_t i = 0; i < STEPS; i++)
			check_step(m, i * 17 % STEPS, &s);
		for (int64_t i = STEPS - 1; i >= 0; i--)
			check_step(m, i, &s);
		assert_int_equal(vfm_plan_step(m, STEPS, &s, &err), VFM_EUSAGE);
		assert_int_equal(vfm_plan_step(m, -1, &s, &err), VFM_EUSAGE);
		vfm_plan_step_release(&s);
		vfm_plan_close(m);
	}
}

/* Opens and reads all; 0 or the code, with the message in err. */
static int read_all(struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(file, err);
	struct vfm_plan_step s = {0};
	int rc = 0;

	if (!m)
		return err->code;
	for (int64_t i = 0; rc == 0 && i < vfm_plan_header(m)->steps; i++)
		rc = vfm_plan_step(m, i, &s, err);
	vfm_plan_step_release(&s);
	vfm_plan_close(m);
	return rc;
}

#define HEAD(set) HEAD_WITH(set, "")
#define HEAD_WITH(set, more)                                                                                           \
	"{\"v\":1,\"type\":\"vfm-manifest\",\"context\":100,\"batch\":1,\"seed\":1,\"steps\":2,\"patch\":[1,2,2],"     \
	"\"latent_channels\":16,\"text_dim\":8,\"sets\":[" set "]" more "}\n"
#define SHA   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define SHA_2 "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define SET   "{\"name\":\"a\",\"dir\":\"d\",\"records\":10,\"index_sha256\":\"" SHA "\",\"weight\":1}"
#define PACK(step, tokens, samples)                                                                                    \
	"{\"step\":" #step ",\"pack\":0,\"tokens\":" #tokens ",\"cost\":1,\"samples\":" samples "}\n"
#define GOOD0    PACK(0, 5, "[[0,0,1,5]]")
#define GOOD1    PACK(1, 7, "[[0,0,2,3],[0,1,3,4]]")
#define BAD_LINE HEAD(SET) PACK(0, 6, "[[0,0,1,5]]") GOOD1

static void hostile_lines(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"", "empty"},
		{"\n", "not a plan"},
		{"garbage", "not a plan"},
		{"[1,2]\n", "not a plan"},
		{"{\"v\":1}\n", "type"},
		{HEAD(SET), "truncated"},
		{HEAD(SET) GOOD0, "truncated"},
		{HEAD(SET) GOOD0 "{\"step\":1,\"pack\":0,\"tok", "truncated"},
		{HEAD(SET) GOOD0 "{\"step\":1,\"pack\":0,\"tokens\":7,\"cost\":1,\"samples\":[[0,0,2,7]]}",
			"truncated"},
		{HEAD(SET) GOOD0 GOOD0 GOOD1, "line 3: expected step 1"},
		{HEAD(SET) GOOD1 GOOD1, "step 0, pack 0 is missing|expected step 0"},
		{HEAD(SET) "\n" GOOD1, "not a JSON object"},
		{HEAD(SET) "nonsense\n" GOOD1, "not a JSON object"},
		{HEAD(SET) PACK(0, 6, "[[0,0,1,5]]") GOOD1, "line 2: tokens 6, but the samples have 5"},
		{HEAD(SET) PACK(0, 101, "[[0,0,1,101]]") GOOD1, "line 2: tokens"},
		{HEAD(SET) PACK(0, 100, "[[0,0,1,99],[0,0,2,2]]") GOOD1, "exceed the context"},
		{HEAD(SET) PACK(0, 5, "[[1,0,1,5]]") GOOD1, "set 1"},
		{HEAD(SET) PACK(0, 5, "[[0,0,10,5]]") GOOD1, "has 10 records"},
		{HEAD(SET) PACK(0, 5, "[[0,0,1,-5]]") GOOD1, "samples[0]"},
		{HEAD(SET) PACK(0, 5, "[[0,0,1,5,6]]") GOOD1, "samples[0]"},
		{HEAD(SET) PACK(0, 5, "[[0,0,1,5.0]]") GOOD1, "samples[0]"},
		{HEAD(SET) PACK(0, 5, "[[0,99999999999,1,5]]") GOOD1, "samples[0]"},
		{HEAD(SET) PACK(0, 5, "[[0,0,1,99999999999999999999]]") GOOD1, "not a JSON object"},
		{HEAD(SET) PACK(0, 5, "[]") GOOD1, "empty"},
		{HEAD(SET) PACK(0, 5, "7") GOOD1, "samples"},
		{HEAD(SET) "{\"step\":0,\"pack\":0,\"tokens\":5,\"cost\":-1,\"samples\":[[0,0,1,5]]}\n" GOOD1, "cost"},
		{HEAD(""), "sets"},
		{HEAD("7") GOOD0 GOOD1, "sets[0]"},
		{HEAD("{\"name\":\"a\",\"dir\":\"d\",\"records\":10,\"index_sha256\":\"xyz\",\"weight\":1}")
				GOOD0 GOOD1,
			"sets[0].index_sha256"},
		{HEAD("{\"name\":\"a\",\"dir\":\"d\",\"records\":0,\"index_sha256\":\"" SHA "\",\"weight\":1}")
				GOOD0 GOOD1,
			"sets[0].records"},
		{HEAD_WITH(SET, ",\"text2_dim\":-1") GOOD0 GOOD1, "text2_dim"},
		{HEAD_WITH(SET, ",\"text2_dim\":65536") GOOD0 GOOD1, "text2_dim"},
		{HEAD_WITH(SET, ",\"encoders\":7") GOOD0 GOOD1, "encoders: expected an object"},
		{HEAD_WITH(SET, ",\"encoders\":{\"text\":{\"name\":\"a\"}}") GOOD0 GOOD1, "encoders.text.version"},
		{"{\"v\":2,\"type\":\"vfm-manifest\"}\n", "version 2"},
		{"{\"v\":1,\"type\":\"vfm-manifest\",\"context\":99999999999}\n", "context"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct vfm_err err = {0};
		char says[128], *one, *save = NULL;
		int found = 0;

		assert_int_equal(vfm_write_file(file, bad[i].text, strlen(bad[i].text), &err), 0);
		assert_int_equal(read_all(&err), VFM_EUSAGE);
		snprintf(says, sizeof(says), "%s", bad[i].says);
		for (one = strtok_r(says, "|", &save); one; one = strtok_r(NULL, "|", &save))
			found |= strstr(err.msg, one) != NULL;
		if (!found || !strstr(err.msg, file) || strchr(err.msg, '\n'))
			fail_msg("case %zu: '%s' does not say '%s'", i, err.msg, bad[i].says);
	}
	{
		struct vfm_err err = {0};
		const char *good = HEAD(SET) GOOD0 GOOD1;

		assert_int_equal(vfm_write_file(file, good, strlen(good), &err), 0);
		assert_int_equal(read_all(&err), 0);
	}
}

/* Every truncation, and every flipped byte, of a binary plan is noticed: all of it stands under checksums but
 * the padding. */
static void damaged_binary(void **state)
{
	struct vfm_err err = {0};
	char *data;
	size_t len, unnoticed = 0;

	(void)state;
	write_it(VFM_PLAN_BIN);
	assert_int_equal(vfm_read_file(file, 1 << 20, &data, &len, &err), 0);
	for (size_t n = 0; n < len; n += n < 700 ? 1 : 97) {
		assert_int_equal(vfm_write_file(file, data, n, &err), 0);
		assert_int_equal(read_all(&err), VFM_EUSAGE);
	}
	for (size_t i = 0; i < len; i += i < 700 ? 1 : 13) {
		data[i] ^= 0x41;
		assert_int_equal(vfm_write_file(file, data, len, &err), 0);
		unnoticed += read_all(&err) == 0;
		data[i] ^= 0x41;
	}
	assert_true(unnoticed < 64);
	free(data);
}

static void writer_refuses(void **state)
{
	struct vfm_plan_header h = header();
	struct vfm_plan_sample s = sample(0, 0);
	struct vfm_plan_pack p = {.cp = 1, .n_samples = 1, .samples = &s, .tokens = s.tokens};
	struct vfm_err err = {0};
	FILE *f = fopen("/dev/null", "w"), *full = fopen("/dev/full", "w");
	struct vfm_plan_writer *w = vfm_plan_writer_new(f, VFM_PLAN_JSONL, &h, &err);
	int rc;

	(void)state;
	p.pack = 1;
	assert_int_equal(vfm_plan_writer_pack(w, &p, &err), VFM_EUSAGE); /* out of order */
	p.pack = 0;
	p.cp = 2;
	assert_int_equal(vfm_plan_writer_pack(w, &p, &err), VFM_EUSAGE); /* of a plan without parts */
	p.cp = 1;
	assert_int_equal(vfm_plan_writer_pack(w, &p, &err), 0);
	assert_int_equal(vfm_plan_writer_end(w, STEPS, &err), VFM_EUSAGE); /* too few */
	h.steps = 1;
	h.batch = 1;
	w = vfm_plan_writer_new(full, VFM_PLAN_JSONL, &h, &err);
	rc = vfm_plan_writer_pack(w, &p, &err);
	if (rc == 0)
		rc = vfm_plan_writer_end(w, 1, &err);
	assert_int_equal(rc, VFM_EENV);
	fclose(f);
	fclose(full);
}

/* Plans of packs of several parts: a step has 8. */
static const int32_t parts_of[][8] = {{4, 2, 1, 1}, {2, 1, 1, 4}, {1, 1, 1, 1, 1, 1, 2}, {4, 4}};

static void write_parts(enum vfm_plan_format format)
{
	struct vfm_plan_header h = header();
	struct vfm_err err = {0};
	FILE *f = fopen(file, "w");
	struct vfm_plan_writer *w;

	h.cp = 4;
	h.batch = 8;
	w = vfm_plan_writer_new(f, format, &h, &err);
	assert_non_null(w);
	for (int64_t step = 0; step < STEPS; step++)
		for (int32_t at = 0, i = 0; at < 8; i++) {
			struct vfm_plan_sample s = sample(step, i);
			struct vfm_plan_pack p = {
				.step = step, .pack = at, .cp = parts_of[step % 4][i], .n_samples = 1, .samples = &s};

			s.tokens = p.cp * 100 - i;
			p.tokens = s.tokens;
			assert_int_equal(vfm_plan_writer_pack(w, &p, &err), 0);
			at += p.cp;
		}
	assert_int_equal(vfm_plan_writer_end(w, STEPS, &err), 0);
	fclose(f);
}

static void check_parts(const struct vfm_plan *m, int64_t step)
{
	struct vfm_plan_step s = {0};
	struct vfm_err err = {0};
	int32_t at = 0;

	assert_int_equal(vfm_plan_step(m, step, &s, &err), 0);
	assert_int_equal(s.n_packs, 8);
	for (int i = 0; at < 8; i++) {
		int32_t cp = parts_of[step % 4][i];

		assert_int_equal(s.packs[at].cp, cp);
		assert_int_equal(s.packs[at].pack, at);
		assert_int_equal(s.packs[at].tokens, cp * 100 - i);
		assert_int_equal(s.packs[at].samples[0].index, sample(step, i).index);
		for (int32_t k = 0; k < cp; k++) {
			assert_ptr_equal(vfm_plan_pack_of(&s, at + k), &s.packs[at]);
			assert_int_equal(s.packs[at + k].n_samples, k == 0);
		}
		at += cp;
	}
	vfm_plan_step_release(&s);
}

static void packs_of_several_parts(void **state)
{
	char hex[2][VFM_SHA256_HEX];
	struct vfm_err err = {0};

	(void)state;
	for (int format = 0; format < 2; format++) {
		struct vfm_plan *m;

		write_parts(format ? VFM_PLAN_BIN : VFM_PLAN_JSONL);
		m = vfm_plan_open(file, &err);
		assert_non_null(m);
		assert_int_equal(vfm_plan_header(m)->cp, 4);
		for (int64_t i = 0; i < STEPS; i++)
			check_parts(m, i * 17 % STEPS);
		assert_int_equal(vfm_plan_sha256(m, hex[format], NULL, NULL, &err), 0);
		vfm_plan_close(m);
	}
	assert_string_equal(hex[0], hex[1]);
}

#define PARTS_HEAD                                                                                                     \
	"{\"v\":1,\"type\":\"vfm-manifest\",\"context\":100,\"batch\":4,%s\"seed\":1,\"steps\":1,\"patch\":[1,2,2],"   \
	"\"latent_channels\":16,\"text_dim\":0,\"sets\":[{\"name\":\"x\",\"dir\":\"/y\",\"records\":10,"               \
	"\"index_sha256\":\"" SHA "\",\"weight\":1}]}\n"

static void parts_are_checked(void **state)
{
	static const struct {
		const char *cp, *packs, *message;
	} bad[] = {
		{"\"cp\":3,", "", "cp: expected a power of two"},
		{"\"cp\":8,", "", "cp: expected a divisor of batch"},
		{"\"cp\":1,", "", "cp"},
		{"\"cp\":2,",
			"{\"step\":0,\"pack\":0,\"cp\":2,\"tokens\":150,\"cost\":1,\"samples\":[[0,0,1,150]]}\n"
			"{\"step\":0,\"pack\":2,\"cp\":1,\"tokens\":10,\"cost\":1,\"samples\":[[0,0,1,10]]}\n",
			"truncated: it ends with step 0, pack 2"},
		{"\"cp\":2,",
			"{\"step\":0,\"pack\":0,\"cp\":1,\"tokens\":150,\"cost\":1,\"samples\":[[0,0,1,150]]}\n"
			"{\"step\":0,\"pack\":2,\"cp\":2,\"tokens\":10,\"cost\":1,\"samples\":[[0,0,1,10]]}\n",
			"tokens"},
		{"\"cp\":2,",
			"{\"step\":0,\"pack\":0,\"cp\":1,\"tokens\":50,\"cost\":1,\"samples\":[[0,0,1,50]]}\n"
			"{\"step\":0,\"pack\":2,\"cp\":2,\"tokens\":10,\"cost\":1,\"samples\":[[0,0,1,10]]}\n",
			"expected step 0, pack 1, got step 0, pack 2"},
		{"\"cp\":2,",
			"{\"step\":0,\"pack\":0,\"cp\":1,\"tokens\":50,\"cost\":1,\"samples\":[[0,0,1,50]]}\n"
			"{\"step\":0,\"pack\":1,\"cp\":2,\"tokens\":10,\"cost\":1,\"samples\":[[0,0,1,10]]}\n",
			"cp 2 of pack 1: expected a power of two"},
		{"\"cp\":2,", "{\"step\":0,\"pack\":0,\"tokens\":50,\"cost\":1,\"samples\":[[0,0,1,50]]}\n", "cp"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char *head = vfm_strfmt(PARTS_HEAD, bad[i].cp), *text = vfm_strfmt("%s%s", head, bad[i].packs);
		struct vfm_err err = {0};

		assert_int_equal(vfm_write_file(file, text, strlen(text), &err), 0);
		assert_int_equal(read_all(&err), VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].message))
			fail_msg("case %zu: %s", i, err.msg);
		free(head);
		free(text);
	}
}

static void hash_of(const char *text, char hex[VFM_SHA256_HEX])
{
	struct vfm_err err = {0};
	struct vfm_plan *m;

	if (text)
		assert_int_equal(vfm_write_file(file, text, strlen(text), &err), 0);
	m = vfm_plan_open(file, &err);
	assert_non_null(m);
	assert_int_equal(vfm_plan_sha256(m, hex, NULL, NULL, &err), 0);
	vfm_plan_close(m);
}

/* The hash is that of the content: both encodings have the same, and every sample counts. */
static void hashes(void **state)
{
	static const char *const same[] = {
		HEAD_WITH("{\"name\":\"x\",\"dir\":\"/y\",\"records\":10,\"index_sha256\":\"" SHA "\",\"weight\":0.5}",
			",\"encoders\":{}") GOOD0 GOOD1,
		HEAD(SET) "{\"samples\":[ [0,0,1,5]],\"cost\":4,\"tokens\":5,\"pack\":0,\"step\":0}\n" GOOD1,
	};
	static const char *const other[] = {
		HEAD(SET) PACK(0, 6, "[[0,0,1,6]]") GOOD1,
		HEAD(SET) PACK(0, 5, "[[0,0,2,5]]") GOOD1,
		HEAD(SET) PACK(0, 5, "[[0,1,1,5]]") GOOD1,
		HEAD(SET) GOOD0 PACK(1, 7, "[[0,1,3,4],[0,0,2,3]]"),
		HEAD(SET "," SET) GOOD0 GOOD1,
		HEAD("{\"name\":\"a\",\"dir\":\"d\",\"records\":10,\"index_sha256\":\"" SHA_2 "\",\"weight\":1}")
			GOOD0 GOOD1,
	};
	char a[VFM_SHA256_HEX], b[VFM_SHA256_HEX];
	struct vfm_plan *m;
	struct vfm_err err = {0};

	(void)state;
	write_it(VFM_PLAN_JSONL);
	hash_of(NULL, a);
	write_it(VFM_PLAN_BIN);
	hash_of(NULL, b);
	assert_string_equal(a, b);
	hash_of(HEAD(SET) GOOD0 GOOD1, a);
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		hash_of(same[i], b);
		assert_string_equal(a, b);
	}
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		hash_of(other[i], b);
		assert_string_not_equal(a, b);
	}
	assert_int_equal(vfm_write_file(file, BAD_LINE, strlen(BAD_LINE), &err), 0);
	m = vfm_plan_open(file, &err);
	assert_non_null(m);
	assert_int_equal(vfm_plan_sha256(m, a, NULL, NULL, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "line 2: tokens 6"));
	vfm_plan_close(m);
}

/* A plan without second texts fits a model that reads them: all samples have none. */
static void second_texts_fit_the_model(void **state)
{
	static const struct {
		int32_t plan, model;
		int rc;
	} cases[] = {{0, 0, 0}, {1472, 0, 0}, {1472, 1472, 0}, {0, 1472, 0}, {1472, 1024, VFM_EUSAGE}};
	struct vfm_plan_header h = header();
	struct vfm_model_spec m;
	struct vfm_err err = {0};

	(void)state;
	vfm_model_defaults(&m);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		h.text2_dim = cases[i].plan;
		m.text2_dim = cases[i].model;
		assert_int_equal(vfm_plan_check_model(&h, "p", &m, &err), cases[i].rc);
	}
	assert_string_equal(err.msg, "p has second texts of 1472 features, but model.text2_dim is 1024");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(hostile_lines),
		cmocka_unit_test(damaged_binary), cmocka_unit_test(hashes), cmocka_unit_test(packs_of_several_parts),
		cmocka_unit_test(parts_are_checked), cmocka_unit_test(writer_refuses),
		cmocka_unit_test(second_texts_fit_the_model)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
