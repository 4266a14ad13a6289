/* account_impl.h - shared by account.c, which sums, and account_page.c, which prints. */
#ifndef VFM_CURATE_REPORT_ACCOUNT_IMPL_H
#define VFM_CURATE_REPORT_ACCOUNT_IMPL_H

#include "curate/report/account.h"

struct report_source {
	char *name;
	bool is_path;
	struct report_amount in, kept;
	int64_t lost[VFM_REASONS]; /* records */
	double lost_s[VFM_REASONS];
};

void report_amount_sum(struct report_amount *sum, const struct report_amount *x);
/* Adds the numbers of a source to another. */
void report_source_merge(struct report_source *to, const struct report_source *from);
/* Returns the number of levels of the longest path among the sources. */
int report_sources_depth(const struct report_account *a);
/* Returns the number of sources after paths are shortened to `depth` levels. */
size_t report_sources_count(const struct report_account *a, int depth);
/* Shortens the paths of the sources to `depth` levels, and merges those that become equal. */
void report_sources_shorten(struct report_account *a, int depth);

#endif
