/* The table of train/step/stats.h: its rows against the struct and vfm-train(1), and the reduction over ranks. */
#include "train/step/stats.h"

#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "ranks.h"

static double scratch_of(int rank, int step, int i)
{
	return (double)((rank * 7 + step * 3 + i * 5) % 11) + 0.25;
}

/* Every field has a row of its own. */
static void test_rows(void **state)
{
	bool seen[VFM_STATS] = {false};

	(void)state;
	for (int i = 0; i < VFM_STATS; i++) {
		size_t field = vfm_stats[i].offset / sizeof(double);

		assert_int_equal(vfm_stats[i].offset % sizeof(double), 0);
		assert_true(field < VFM_STATS && !seen[field]);
		seen[field] = true;
		assert_true(vfm_stats[i].scale > 0);
		for (int j = 0; j < i && vfm_stats[i].key; j++)
			assert_true(!vfm_stats[j].key || strcmp(vfm_stats[i].key, vfm_stats[j].key) != 0);
	}
}

/* The manual has an entry for each key, which names the reduction. */
static void test_manual(void **state)
{
	static const char *const named[] = {[VFM_STAT_MEAN] = "mean over the ranks",
		[VFM_STAT_MAX] = "maximum over the ranks",
		[VFM_STAT_SUM] = "sum over the ranks"};
	struct vfm_err e = {0};
	char *text, *records;
	size_t n;

	(void)state;
	if (vfm_read_file("man/vfm-train.1", 1 << 20, &text, &n, &e) < 0)
		fail_msg("%s", e.msg);
	records = strstr(text, "\n.Ss Records\n");
	assert_non_null(records);
	*strstr(records + 1, "\n.Ss ") = 0;
	for (int i = 0; i < VFM_STATS; i++) {
		char head[64], *entry, *end, *how;

		if (!vfm_stats[i].key)
			continue;
		snprintf(head, sizeof(head), "\n.It Sy %s\n", vfm_stats[i].key);
		entry = strstr(records, head);
		if (!entry)
			fail_msg("vfm-train(1) has no entry for %s", vfm_stats[i].key);
		end = strstr(entry + 1, "\n.It ");
		how = strstr(entry, named[vfm_stats[i].reduce]);
		if (!how || (end && how > end))
			fail_msg("vfm-train(1) does not state how %s is reduced", vfm_stats[i].key);
	}
	free(text);
}

/* Rank r knows r + 1 of three steps. */
static int reduce(struct vfm_launch *l, const void *arg)
{
	struct vfm_host_comm_opts opts = {.timeout_s = 20};
	struct vfm_rank_stats s[3];
	struct vfm_comm *c;
	int size = world_of(&((const struct layout *)arg)->p);

	OK(vfm_comm_host_new(l, &opts, &c, &err));
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < VFM_STATS; i++)
			*vfm_stat_at(&s[k], i) = k <= l->rank ? scratch_of(l->rank, k, i) : NAN;
	MUST(vfm_rank_stats_reduce(c, s, 3, l->rank < 2 ? l->rank + 1 : 3, &err) == 1, "rank 0 knows one step");
	for (int i = 0; i < VFM_STATS; i++) {
		double sum = 0, most = 0, got = *vfm_stat_at(&s[0], i);

		for (int r = 0; r < size; r++) {
			sum += scratch_of(r, 0, i);
			most = fmax(most, scratch_of(r, 0, i));
		}
		most = vfm_stats[i].reduce == VFM_STAT_MAX    ? most
			: vfm_stats[i].reduce == VFM_STAT_SUM ? sum
							      : sum / size;
		MUST(got == most, "statistic %d is %g", i, got);
		MUST(l->rank < 1 || *vfm_stat_at(&s[1], i) == scratch_of(l->rank, 1, i),
			"a step that rank 0 does not know was changed");
	}
	MUST(vfm_rank_stats_reduce(c, s, 0, 0, &err) == 0, "no steps");
	vfm_comm_free(c);
	vfm_launch_end(l);
	return 0;
}

static void test_reduce(void **state)
{
	(void)state;
	in_ranks(&(struct layout){.name = "one rank", .p = P(1, 1, 1, 1, 1, 1, 0)}, reduce);
	in_ranks(&(struct layout){.name = "three ranks", .p = P(1, 1, 1, 3, 1, 1, 0)}, reduce);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows), cmocka_unit_test(test_manual), cmocka_unit_test(test_reduce)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
