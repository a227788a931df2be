from flowckpt import step, workflow


def fetch(source, limit):
    return list(range(min(limit, 3)))


@workflow("etl")
def etl(source: str, limit: int = 1000):
    return (yield step("fetch").python(fetch, source, limit).checkpoint())
