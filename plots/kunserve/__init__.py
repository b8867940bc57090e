"""KunServe's figures. TBT is the paper's: a request's mean, our tpot. Rows of a table whose `part`
is empty are runs, from which the claims (`results/claims/kunserve.yaml`) are computed. The other
rows are curves of one run, whose name is in `series`."""
