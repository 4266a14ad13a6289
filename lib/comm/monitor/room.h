/* comm/monitor - finds failed ranks.
 *
 * A tree of threads, one in each process, that notices a rank that ended or hangs, and tells all others.
 *
 * Used by: comm/coll starts it; host_job.h there declares the calls
 * Calls: base, comm/coll
 * Read first: monitor_impl.h
 */
