/* index_scale - measures indexes of many samples, for bench/index-scale.
 *
 *     index_scale rewrite FROM TO    writes the index FROM again, in the newest version
 *     index_scale open INDEX N       opens INDEX, then reads N records at random places, with their texts
 *     index_scale keys N             adds N keys to a set, as the writer of a dataset does, with a duplicate each 1000
 *
 * Prints a JSON object: seconds that passed, seconds of the processor, and the largest resident memory.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/err.h"
#include "data/dataset/index.h"
#include "data/record/sample_key.h"
#include "data/record/sample_set.h"

struct clocks {
	double wall, cpu;
};

static struct clocks read_clocks(void)
{
	struct timespec t;
	struct rusage u;

	clock_gettime(CLOCK_MONOTONIC, &t);
	getrusage(RUSAGE_SELF, &u);
	return (struct clocks){(double)t.tv_sec + (double)t.tv_nsec * 1e-9,
		(double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
			(double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6};
}

static void print_time(const char *what, struct clocks since)
{
	struct clocks now = read_clocks();

	printf("\"%s_s\":%.6f,\"%s_cpu_s\":%.6f,", what, now.wall - since.wall, what, now.cpu - since.cpu);
}

/* Private memory and mapped pages of files apart: the kernel can take the latter back. */
static void print_memory(void)
{
	char line[128];
	FILE *f = fopen("/proc/self/status", "r");
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	printf("\"max_rss_kib\":%ld", u.ru_maxrss);
	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "RssAnon:", 8))
			printf(",\"anon_kib\":%ld", strtol(line + 8, NULL, 10));
	if (f)
		fclose(f);
}

static int copy_sample(struct vfm_index *ix, uint64_t n, struct vfm_index_writer *w, struct vfm_err *err)
{
	struct vfm_index_text texts[VFM_TEXTS_MAX + VFM_EXTRAS];
	const char *names[VFM_TEXTS_MAX];
	struct vfm_index_record r;
	uint32_t k;

	TRY(vfm_index_at(ix, n, &r, err));
	for (k = 0; k < r.n_texts; k++) {
		TRY(vfm_index_text(ix, &r, k, &texts[k], err));
		names[k] = vfm_index_info(ix)->names[texts[k].name];
	}
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (vfm_record_has_extra(&r, (enum vfm_extra)e))
			TRY(vfm_index_extra(ix, &r, (enum vfm_extra)e, &texts[k++], err));
	return vfm_index_writer_add(w, &r, texts, names, err);
}

static int copy_index(struct vfm_index *ix, struct vfm_index_writer *w, struct vfm_err *err)
{
	struct vfm_index_shard s;

	for (uint32_t i = 0; i < vfm_index_info(ix)->n_shards; i++) {
		TRY(vfm_index_shard(ix, i, &s, err));
		TRY(vfm_index_writer_shard(w, s.name, s.bytes, err));
		for (uint64_t n = s.first; n < s.first + s.count; n++)
			TRY(copy_sample(ix, n, w, err));
	}
	return 0;
}

static int rewrite(const char *from, const char *to, struct vfm_err *err)
{
	struct vfm_index_writer *w;
	struct vfm_encoder_ids encoder_ids;
	struct vfm_index *ix;
	int rc;

	TRY(vfm_index_open(&ix, from, err));
	encoder_ids = vfm_index_info(ix)->encoder_ids;
	TRY_OUT(vfm_index_writer_open(&w, to, err));
	rc = copy_index(ix, w, err);
	if (rc < 0)
		vfm_index_writer_abort(w);
	else
		rc = vfm_index_writer_commit(w, &encoder_ids, err);
out:
	vfm_index_close(ix);
	return rc;
}

static int open_and_read(const char *path, uint64_t n, struct vfm_err *err)
{
	struct clocks since = read_clocks();
	struct vfm_index *ix;
	struct vfm_index_record r;
	struct vfm_index_text t;
	uint64_t state = 88172645463325252u;
	int rc;

	TRY(vfm_index_open(&ix, path, err));
	vfm_index_expect_random(ix);
	print_time("open", since);
	since = read_clocks();
	for (uint64_t i = 0; i < n; i++) {
		state ^= state << 13; /* xorshift64, Marsaglia 2003 */
		state ^= state >> 7;
		state ^= state << 17;
		TRY_OUT(vfm_index_at(ix, state % vfm_index_info(ix)->n_records, &r, err));
		for (uint32_t k = 0; k < r.n_texts; k++)
			TRY_OUT(vfm_index_text(ix, &r, k, &t, err));
	}
	TRY_OUT(vfm_index_check(ix, err));
	print_time("read", since);
	rc = 0;
out:
	vfm_index_close(ix);
	return rc;
}

/* Each 1000th key is the one that stands in the middle of those before it. */
static int add_keys(uint64_t n, struct vfm_err *err)
{
	struct vfm_sample_set set = {0};
	struct vfm_sample_seen s, first;
	uint64_t duplicates = 0;
	char key[32];
	int rc = 0;

	for (uint64_t i = 0; rc >= 0 && i < n; i++) {
		snprintf(key, sizeof(key), "clip-%016" PRIx64, i % 1000 == 999 ? i / 2 : i);
		s = (struct vfm_sample_seen){.place = (int64_t)i};
		vfm_sample_hash(key, s.hash);
		rc = vfm_sample_set_add(&set, &s, &first, err);
		duplicates += rc == 1;
	}
	printf("\"keys\":%" PRIu64 ",\"duplicates\":%" PRIu64 ",", set.n, duplicates);
	/* the set is not released: its memory is printed at the end */
	return rc < 0 ? rc : 0;
}

int main(int argc, char **argv)
{
	struct clocks since = read_clocks();
	struct vfm_err err = {0};
	int rc = VFM_EUSAGE;

	printf("{");
	if (argc == 4 && !strcmp(argv[1], "rewrite"))
		rc = rewrite(argv[2], argv[3], &err);
	else if (argc == 4 && !strcmp(argv[1], "open"))
		rc = open_and_read(argv[2], strtoull(argv[3], NULL, 10), &err);
	else if (argc == 3 && !strcmp(argv[1], "keys"))
		rc = add_keys(strtoull(argv[2], NULL, 10), &err);
	else
		vfm_fail(&err, rc, "usage: index_scale rewrite FROM TO | open INDEX N | keys N");
	print_time("all", since);
	print_memory();
	printf("}\n");
	if (rc < 0)
		fprintf(stderr, "index_scale: %s\n", err.msg);
	return -rc;
}
